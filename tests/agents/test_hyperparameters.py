import pytest
import yaml

from atoffer_rl.agents.hyperparameters import CONFIG_FOLDER, SECTION, ppo_config, pretrain_config
from atoffer_rl.errors import AtofferError


def test_shipped_files_are_complete():
    assert ppo_config().n_envs == 1
    assert pretrain_config().tables > 0


def test_changes_take_precedence_and_none_changes_nothing():
    assert ppo_config({"n_envs": 3, "timesteps": None}) == ppo_config({"n_envs": 3})
    assert ppo_config({"n_envs": 3}).n_envs == 3


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"n_steps": "many"}, "n_steps must be a whole number"),
        ({"n_steps": 1.5}, "n_steps must be a whole number"),
        ({"learning_rate": -1.0}, "learning_rate must be a number"),
        ({"learning_rate": float("nan")}, "learning_rate must be a number"),
        ({"n_envs": 0}, "n_envs must be a whole number from 1 to 16, not 0"),
        ({"n_envs": 10**9}, "n_envs must be"),
        ({"hidden": 4096}, "hidden must be a whole number from 1 to 512, not 4096"),
        ({"learning_rate": 1.0}, "learning_rate must be a number from 1e-09 to 0.1"),
        ({"batch_size": 1}, "batch_size must be"),
        ({"colour": 1}, "colour unknown or missing"),
    ],
)
def test_wrong_values_are_named(tmp_path, change, complaint):
    values = yaml.safe_load((CONFIG_FOLDER / "ppo.yml").read_text())[SECTION] | change
    (tmp_path / "own.yml").write_text(yaml.safe_dump({SECTION: values}))
    with pytest.raises(AtofferError, match=complaint):
        ppo_config(path=tmp_path / "own.yml")


@pytest.mark.parametrize("content", ["", "a: [", "other: {}", "\udcff", "a: !!int ''", "a: !!timestamp x"])
def test_unreadable_files_are_one_line(tmp_path, content):
    (tmp_path / "own.yml").write_text(content, errors="surrogateescape")
    with pytest.raises(AtofferError, match="cannot read hyperparameters"):
        ppo_config(path=tmp_path / "own.yml")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("other: {}", "it needs a section"),
        ("- a", "it needs a section"),
        (
            f"{SECTION}:\n  n_envs: 1\n\thidden: 2",
            "not valid YAML, line 3: found character '.t' that cannot start any token",
        ),
        (f"{SECTION}: [1", "not valid YAML, line 1"),
        ("a: !!int x", "not valid YAML: invalid literal"),
        ("a: \x01", "not valid YAML: unacceptable character"),
    ],
)
def test_what_is_no_yaml_is_said_to_be_none(tmp_path, content, complaint):
    (tmp_path / "own.yml").write_text(content)
    with pytest.raises(AtofferError, match=complaint) as failure:
        ppo_config(path=tmp_path / "own.yml")
    assert "\n" not in str(failure.value)


def test_a_file_that_is_not_there_is_said_to_be(tmp_path):
    for path, complaint in (
        (tmp_path / "own.yml", "there is no file of hyperparameters"),
        (tmp_path, "Is a directory"),
        (tmp_path / ("x" * 300), "File name too long"),
        (tmp_path / "nul\0", "names or holds no text"),
    ):
        with pytest.raises(AtofferError, match=complaint):
            ppo_config(path=path)
