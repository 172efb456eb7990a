import resource
from pathlib import Path

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
        ({"two\nlines": 1, 3: 4}, "3, two lines unknown or missing"),
        ({"n_steps": 10**6}, "n_steps must be a whole number from 2 to 65536, not 1000000"),
        (
            {"n_steps": 8192, "n_envs": 16},
            "n_envs . n_steps is 131072 steps, over 65536 take too much memory: reduce n_steps or n_envs",
        ),
        ({"n_steps": 8193, "batch_size": 10**6}, "minibatches of 8193 steps take too much memory: reduce batch_size"),
        (
            {"n_steps": 129},
            "n_envs . n_steps is 129 steps, .* batch_size 64 has one alone: change n_steps or batch_size",
        ),
        ({"n_steps": 43, "n_envs": 3}, "n_envs . n_steps is 129 steps"),
        ({"n_steps": 1}, "n_steps must be a whole number from 2"),
        ({"n_steps": [[1]] * 1000}, "n_steps must be a whole number .* not a list$"),
        ({"n_steps": "long " * 1000}, "n_steps must be a whole number .{1,300}[.]{3}$"),
        ({f"colour_{k}": 1 for k in range(200)}, "colour_0, .{1,300}[.]{3} unknown or missing$"),
    ],
)
def test_wrong_values_are_named(tmp_path, change, complaint):
    values = yaml.safe_load((CONFIG_FOLDER / "ppo.yml").read_text())[SECTION] | change
    (tmp_path / "own.yml").write_text(yaml.safe_dump({SECTION: values}))
    with pytest.raises(AtofferError, match=complaint):
        ppo_config(path=tmp_path / "own.yml")


@pytest.mark.parametrize("change", [{"n_envs": 0}, {"colour": 1}, {"n_steps": 129}])
def test_only_a_file_that_is_wrong_is_named(tmp_path, change):
    values = yaml.safe_load((CONFIG_FOLDER / "ppo.yml").read_text())[SECTION] | change
    (tmp_path / "own.yml").write_text(yaml.safe_dump({SECTION: values}))
    with pytest.raises(AtofferError, match=f"^{tmp_path}/own.yml: "):
        ppo_config(path=tmp_path / "own.yml")
    with pytest.raises(AtofferError, match=r"^(n_envs|colour) "):
        ppo_config(change)


def test_a_minibatch_may_be_the_whole_rollout():
    assert ppo_config({"n_steps": 65, "batch_size": 10**6}).batch_size == 10**6
    assert ppo_config({"n_steps": 130}).n_steps == 130


@pytest.fixture
def _little_memory():
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**29, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("_little_memory")
def test_aliases_of_aliases_are_not_written_out(tmp_path):
    levels = "".join(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]\n" for k in range(1, 10))
    values = (CONFIG_FOLDER / "ppo.yml").read_text().replace("n_steps: 128", "n_steps: *a9")
    (tmp_path / "own.yml").write_text(f"a0: &a0 [lol]\n{levels}{values}")
    with pytest.raises(AtofferError, match=r"n_steps must be a whole number .* not a list$"):
        ppo_config(path=tmp_path / "own.yml")


@pytest.mark.parametrize("value", [10**5000, -(10**5000)], ids=["above", "below"])
def test_a_number_too_long_to_write_out(value):
    with pytest.raises(AtofferError, match=r"n_steps must be a whole number .* too large to show"):
        ppo_config({"n_steps": value})


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
        (tmp_path, "is a folder, pipe or device: choose a regular file"),
        (tmp_path / ("x" * 300), "File name too long"),
        (tmp_path / "nul\0", "names or holds no text"),
    ):
        with pytest.raises(AtofferError, match=complaint):
            ppo_config(path=path)
