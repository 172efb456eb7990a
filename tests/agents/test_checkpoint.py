import contextlib
import errno
import io
import json
import lzma
import math
import os
import pickle
import random
import struct
import zipfile
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from atoffer_rl.agents.checkpoint import MAX_BYTES, Checkpoint, load_checkpoint, save_checkpoint
from atoffer_rl.agents.hyperparameters import ppo_config
from atoffer_rl.agents.ppo import PPOSearch
from atoffer_rl.agents.rehearsal import Rehearsal
from atoffer_rl.agents.run_state import checkpoint_of
from atoffer_rl.agents.session import Session
from atoffer_rl.errors import LogError, PolicyError
from atoffer_rl.kernels.ledger import Ledger
from tests.agents.conftest import SMOKE, WORKLOAD


@pytest.fixture(scope="module")
def trained(measurer):
    """A checkpoint of a short run, after updates."""
    session = Session(Ledger(WORKLOAD, measurer, 20))
    config = ppo_config(SMOKE | {"timesteps": 64})
    search = PPOSearch(config)
    model = search.model(session, Rehearsal(session.ledger))
    model.learn(config.timesteps)
    return checkpoint_of(model, session, config)


@pytest.fixture
def checkpoint(trained):
    return deepcopy(trained)


def test_round_trip(checkpoint, tmp_path):
    save_checkpoint(checkpoint, tmp_path / "c.zip")
    loaded = load_checkpoint(tmp_path / "c.zip")
    torch.testing.assert_close(dict(loaded.weights), dict(checkpoint.weights))
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


def plain_pickle(members):
    members["tensors.pt"] = pickle.dumps([1.5, {2: "x"}])


def deep_json(members):
    members["about.json"] = b"[" * 100_000


def long_number(members):
    members["about.json"] = b'{"format": ' + b"1" * 5000 + b"}"


def nested_format(members):
    members["about.json"] = json.dumps({"format": ["x" * 9999]}).encode()


def bomb(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data/0", bytes(MAX_BYTES + 1))
    members["tensors.pt"] = buffer.getvalue()


def nest(members):
    members["about.json"] = b"[" + b"[]," * 2_000_000 + b"[]]"


def pickled_nest(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", b"]" * 5_000_000)
    members["tensors.pt"] = buffer.getvalue()


def vast(members):
    members["tensors.pt"] = bytes(MAX_BYTES)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "change",
    [
        no_tensors,
        half_tensors,
        no_json,
        other_format,
        code,
        plain_pickle,
        deep_json,
        long_number,
        nested_format,
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
    return str(failure.value)


@pytest.mark.parametrize("hidden", [0, -3, 10**9, 1.5, "x", math.inf])
def test_a_width_that_no_network_has(checkpoint, tmp_path, hidden):
    refuses(checkpoint, tmp_path / "c.zip", other_about(hidden=hidden))


@pytest.mark.parametrize("run", [[1], "x", None], ids=str)
def test_a_run_that_is_none(checkpoint, tmp_path, run):
    refuses(checkpoint, tmp_path / "c.zip", other_about(run=run))


@pytest.mark.parametrize("weights", [3, [1], "x", torch.tensor(math.nan), torch.tensor(3e38), torch.tensor(1)], ids=str)
def test_weights_that_are_none(checkpoint, tmp_path, weights):
    refuses(checkpoint, tmp_path / "c.zip", other_weights(weights))
    refuses(checkpoint, tmp_path / "c.zip", other_weights({"w": weights}))


def test_weights_that_repeat_one_number_are_not_unrolled(checkpoint, tmp_path):
    unrolled = other_weights({"w": torch.zeros(1).expand(MAX_BYTES // 4 + 1)})
    refuses(checkpoint.policy_alone(), tmp_path / "c.zip", unrolled)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_weights_are_named_and_dense(checkpoint, tmp_path):
    for weights in ({1: torch.zeros(1)}, {"w": torch.eye(3).to_sparse()}, {"w": torch.eye(3).to_sparse_csr()}):
        refuses(checkpoint.policy_alone(), tmp_path / "c.zip", other_weights(weights))


@pytest.mark.parametrize("change", [bomb, nest, pickled_nest])
def test_what_unpacks_inside_counts(checkpoint, tmp_path, change):
    assert "unpacks to more than a policy takes" in refuses(checkpoint, tmp_path / "c.zip", change)


def flipped(content, rng):
    """`content` with a few bytes changed, most of them where the zip describes itself, or cut off."""
    if rng.random() < 0.1:
        return content[: rng.randrange(len(content))]
    changed, last = bytearray(content), len(content) - 1
    for _ in range(rng.choice((1, 1, 2, 8))):
        start, end = rng.choice(((0, last), (0, min(80, last)), (max(0, last - 200), last)))
        changed[rng.randint(start, end)] = rng.randrange(256)
    return bytes(changed)


def with_members_flipped(content, rng, name):
    """The zip `content`, what is in its member `name` flipped, and its checksums right."""
    source, target = zipfile.ZipFile(io.BytesIO(content)), io.BytesIO()
    with zipfile.ZipFile(target, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_LZMA))) as file:
        for member in source.namelist():
            inside = source.read(member)
            file.writestr(member, flipped(inside, rng) if member.endswith(name) else inside)
    return target.getvalue()


def with_pickle_flipped(content, rng):
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        about, tensors = file.read("about.json"), file.read("tensors.pt")
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as file:
        file.writestr("about.json", about)
        file.writestr("tensors.pt", with_members_flipped(tensors, rng, "data.pkl"))
    return target.getvalue()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "flip",
    [
        flipped,
        lambda content, rng: flipped(with_members_flipped(content, rng, "neither"), rng),
        lambda content, rng: with_members_flipped(content, rng, "about.json"),
        lambda content, rng: with_members_flipped(content, rng, "tensors.pt"),
        with_pickle_flipped,
    ],
    ids=["file", "packed", "about.json", "tensors.pt", "pickle"],
)
def test_bytes_that_changed_are_damage_or_harmless(checkpoint, tmp_path, flip, capfd):
    save_checkpoint(checkpoint.policy_alone(), tmp_path / "c.zip")
    content, rng = (tmp_path / "c.zip").read_bytes(), random.Random(0)
    for _ in range(200):
        (tmp_path / "c.zip").write_bytes(flip(content, rng))
        with contextlib.suppress(PolicyError):
            load_checkpoint(tmp_path / "c.zip")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "error", [struct.error, AssertionError, lzma.LZMAError, UserWarning, MemoryError, RecursionError]
)
def test_whatever_is_raised_of_damage_is_one_error(checkpoint, tmp_path, monkeypatch, error):
    def failing(*_, **__):
        raise error

    save_checkpoint(checkpoint, tmp_path / "c.zip")
    monkeypatch.setattr(torch, "load", failing)
    with pytest.raises(PolicyError, match="damaged or not a checkpoint"):
        load_checkpoint(tmp_path / "c.zip")


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


def of_first(**changes):
    """Alters the optimizer's state of the first parameter; None removes a part."""

    def alter(checkpoint):
        state = checkpoint.optimizer["state"][0]
        for name, value in changes.items():
            if value is None:
                del state[name]
            else:
                state[name] = value(state["exp_avg"]) if callable(value) else value

    return alter


def of_group(**changes):
    def alter(checkpoint):
        checkpoint.optimizer["param_groups"][0].update(changes)

    return alter


def of_optimizer(**changes):
    return lambda checkpoint: checkpoint.optimizer.update(changes)


def of_weights(change):
    return lambda checkpoint: change(checkpoint.weights)


UNUSABLE = {
    "mean NaN": of_first(exp_avg=lambda mean: mean * math.nan),
    "mean infinite": of_first(exp_avg=lambda mean: mean + math.inf),
    "mean far beyond its square": of_first(exp_avg=lambda mean: mean + 1e30),
    "square negative": of_first(exp_avg_sq=lambda mean: -mean.abs() - 1),
    "square NaN": of_first(exp_avg_sq=lambda mean: mean * math.nan),
    "square absent": of_first(exp_avg_sq=None),
    "square of another shape": of_first(exp_avg_sq=torch.ones(3)),
    "mean of another format": of_first(exp_avg=lambda mean: mean.double()),
    "mean no tensor": of_first(exp_avg=3),
    "something besides": of_first(max_exp_avg_sq=lambda mean: mean),
    "step negative": of_first(step=torch.tensor(-1.0)),
    "step broken": of_first(step=torch.tensor(1.5)),
    "step NaN": of_first(step=torch.tensor(math.nan)),
    "step no tensor": of_first(step=3),
    "steps": of_first(step=torch.ones(2)),
    "rate a text": of_group(lr="x"),
    "rate NaN": of_group(lr=math.nan),
    "rate negative": of_group(lr=-1.0),
    "rate a tensor": of_group(lr=torch.tensor([0.1, 0.1])),
    "betas a number": of_group(betas=5),
    "betas beyond": of_group(betas=(2.0, 0.999)),
    "eps": of_group(eps=-1.0),
    "decay": of_group(weight_decay=1e30),
    "parameters": of_group(params=[0]),
    "unknown setting": of_group(colour=1),
    "capturable": of_group(capturable=True),
    "no settings": of_optimizer(param_groups=[]),
    "settings none": of_optimizer(param_groups=None),
    "state of a parameter that is not there": of_optimizer(state={99: {}}),
    "state a list": of_optimizer(state=[]),
    "weight far beyond": of_weights(lambda weights: weights["value_net.bias"].fill_(3e38)),
    "weight absent": of_weights(lambda weights: weights.popitem()),
    "weight of another shape": of_weights(lambda weights: weights.update({"value_net.bias": torch.zeros(7)})),
    "weight of another format": of_weights(lambda weights: weights.update({"value_net.bias": torch.zeros(1).double()})),
}


@pytest.mark.parametrize("change", UNUSABLE.values(), ids=UNUSABLE)
def test_a_state_that_no_run_writes_is_damage(checkpoint, tmp_path, change):
    save_checkpoint(checkpoint, tmp_path / "c.zip")
    load_checkpoint(tmp_path / "c.zip")
    change(checkpoint)
    save_checkpoint(checkpoint, tmp_path / "c.zip")
    with pytest.raises(PolicyError, match="damaged or not a checkpoint"):
        load_checkpoint(tmp_path / "c.zip")


@pytest.mark.parametrize("state", [None, torch.zeros(3, dtype=torch.uint8), torch.zeros(5056), "x"], ids=str)
def test_a_random_state_that_is_none_is_damage(checkpoint, tmp_path, state):
    save_checkpoint(replace(checkpoint, random_state=state), tmp_path / "c.zip")
    with pytest.raises(PolicyError, match="damaged or not a checkpoint"):
        load_checkpoint(tmp_path / "c.zip")


def test_loading_draws_nothing(checkpoint, tmp_path):
    save_checkpoint(checkpoint, tmp_path / "c.zip")
    before = torch.get_rng_state()
    load_checkpoint(tmp_path / "c.zip")
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_no_file_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, complaint in (
        (tmp_path, "is a folder, pipe or device: choose a regular file, a checkpoint.zip"),
        (tmp_path / "pipe", "is a folder, pipe or device"),
        (tmp_path / ("x" * 300), "File name too long"),
        (tmp_path / "nul\0", "there can be no policy"),
    ):
        with pytest.raises(PolicyError, match=complaint):
            load_checkpoint(path)
