import errno
import io
import json
import math
import zipfile

import pytest
import torch

from atoffer_rl.agents.checkpoint import MAX_BYTES, Checkpoint, load_checkpoint, save_checkpoint
from atoffer_rl.envs.space_hash import space_hash
from atoffer_rl.errors import LogError, PolicyError


@pytest.fixture
def checkpoint():
    optimizer = {"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    return Checkpoint({"w": torch.arange(3.0)}, 16, space_hash(), {"timesteps": 7}, optimizer, torch.get_rng_state())


def test_round_trip(checkpoint, tmp_path):
    save_checkpoint(checkpoint, tmp_path / "c.zip")
    loaded = load_checkpoint(tmp_path / "c.zip")
    torch.testing.assert_close(loaded.weights["w"], checkpoint.weights["w"])
    assert (loaded.hidden, loaded.space, loaded.run) == (16, checkpoint.space, checkpoint.run)
    assert loaded.optimizer["param_groups"] == checkpoint.optimizer["param_groups"]
    assert loaded.resumable
    alone = loaded.policy_alone()
    assert not alone.resumable
    save_checkpoint(alone, tmp_path / "p.zip")
    assert not load_checkpoint(tmp_path / "p.zip").resumable


def test_same_policy_same_bytes(checkpoint, tmp_path):
    for name in ("a.zip", "b.zip"):
        save_checkpoint(checkpoint.policy_alone(), tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def damaged(path, change):
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)


def no_tensors(members):
    del members["tensors.pt"]


def half_tensors(members):
    members["tensors.pt"] = members["tensors.pt"][: len(members["tensors.pt"]) // 2]


def no_json(members):
    members["about.json"] = b"{"


def other_format(members):
    members["about.json"] = json.dumps(json.loads(members["about.json"]) | {"format": "other"}).encode()


class Code:
    def __reduce__(self):
        return (print, ("this must never run",))


def code(members):
    buffer = io.BytesIO()
    torch.save({"weights": Code()}, buffer)
    members["tensors.pt"] = buffer.getvalue()


def other_about(**change):
    def alter(members):
        members["about.json"] = json.dumps(json.loads(members["about.json"]) | change).encode()

    return alter


def other_weights(weights):
    def alter(members):
        buffer = io.BytesIO()
        torch.save({"weights": weights}, buffer)
        members["tensors.pt"] = buffer.getvalue()

    return alter


def deep_json(members):
    members["about.json"] = b"[" * 100_000


def vast(members):
    members["tensors.pt"] = bytes(MAX_BYTES)


@pytest.mark.parametrize(
    "change",
    [
        no_tensors,
        half_tensors,
        no_json,
        other_format,
        code,
        deep_json,
        vast,
    ],
)
def test_damage_is_one_line(checkpoint, tmp_path, change, capsys):
    refuses(checkpoint, tmp_path / "c.zip", change)
    assert "must never run" not in capsys.readouterr().out


def refuses(checkpoint, path, change):
    save_checkpoint(checkpoint, path)
    damaged(path, change)
    with pytest.raises(PolicyError) as failure:
        load_checkpoint(path)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("hidden", [0, -3, 10**9, 1.5, "x", math.inf])
def test_a_width_that_no_network_has(checkpoint, tmp_path, hidden):
    refuses(checkpoint, tmp_path / "c.zip", other_about(hidden=hidden))


@pytest.mark.parametrize("run", [[1], "x", None], ids=str)
def test_a_run_that_is_none(checkpoint, tmp_path, run):
    refuses(checkpoint, tmp_path / "c.zip", other_about(run=run))


@pytest.mark.parametrize("weights", [3, [1], "x", torch.tensor(math.nan), torch.tensor(1)], ids=str)
def test_weights_that_are_none(checkpoint, tmp_path, weights):
    refuses(checkpoint, tmp_path / "c.zip", other_weights(weights))
    refuses(checkpoint, tmp_path / "c.zip", other_weights({"w": weights}))


@pytest.mark.parametrize("content", [b"", b"not a zip", None])
def test_what_is_no_checkpoint_is_one_line(tmp_path, content):
    if content is not None:
        (tmp_path / "c.zip").write_bytes(content)
    with pytest.raises(PolicyError, match="checkpoint"):
        load_checkpoint(tmp_path / "c.zip")
    with pytest.raises(PolicyError, match="checkpoint"):
        load_checkpoint(tmp_path)


def test_another_space_is_refused(checkpoint, tmp_path):
    save_checkpoint(Checkpoint(checkpoint.weights, 16, "0" * 16), tmp_path / "c.zip")
    with pytest.raises(PolicyError, match="other observations"):
        load_checkpoint(tmp_path / "c.zip")


def test_a_full_disk_keeps_the_earlier_file(checkpoint, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    save_checkpoint(checkpoint, tmp_path / "c.zip")
    before = (tmp_path / "c.zip").read_bytes()
    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(LogError, match="No space left on device"):
        save_checkpoint(checkpoint.policy_alone(), tmp_path / "c.zip")
    assert (tmp_path / "c.zip").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["c.zip"]


def test_an_unwritable_place_is_one_line(checkpoint, tmp_path):
    with pytest.raises(LogError, match="cannot write checkpoint"):
        save_checkpoint(checkpoint, tmp_path / "missing" / "c.zip")
