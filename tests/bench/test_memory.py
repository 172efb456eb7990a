"""Memory that others took is told apart from what a peer needs beyond its share."""

import pytest
import torch

from atoffer_rl.bench import contest as contest_module
from atoffer_rl.bench.contest import Contender, Contest
from atoffer_rl.bench.memory import MemoryShare
from atoffer_rl.errors import LaunchError, MemoryTaken
from tests.kernels.test_worker import MEMORY

PROMISED, ALONE = MemoryShare(1000, is_promised=True), MemoryShare(1000, is_promised=False)
TORCHS = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.fixture
def gpu(monkeypatch):
    """Says how much memory is free, and how much torch has already."""

    def say(free_bytes, reserved_bytes):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free_bytes, 2**40))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: reserved_bytes)

    return say


@pytest.mark.parametrize(("reserved_bytes", "taken"), [(899, True), (900, False)])
def test_torch_refuses_what_is_beyond_the_share_too(gpu, reserved_bytes, taken):
    gpu(100, reserved_bytes)
    assert isinstance(PROMISED.taken(TORCHS), MemoryTaken) is taken
    assert ALONE.taken(TORCHS) is None


@pytest.mark.parametrize("text", MEMORY)
def test_whoever_asks_the_driver_was_refused_what_others_have(gpu, text):
    gpu(10**6, 0)
    assert isinstance(PROMISED.taken(RuntimeError(text)), MemoryTaken)
    assert ALONE.taken(RuntimeError(text)) is None


def test_a_cause_counts(gpu):
    broken = RuntimeError("operation failed due to a previous error during capture")
    assert PROMISED.taken(broken) is None
    broken.__context__ = TORCHS
    gpu(0, 0)
    assert isinstance(PROMISED.taken(broken), MemoryTaken)


def test_other_errors_are_nobodys_doing():
    assert PROMISED.taken(ValueError("not today")) is None
    taken = MemoryTaken("gone")
    assert PROMISED.taken(taken) is taken


def contest(monkeypatch, share):
    """Of ours, which works, and a peer for which torch has no memory."""
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(contest_module, "capture", lambda *_: {})
    monkeypatch.setattr(contest_module, "time_in_turns", lambda *_: {"ours": [1.0]})
    monkeypatch.setattr(contest_module, "choose_replay", lambda _: None)

    def failing():
        raise TORCHS

    return Contest([Contender("ours", lambda: lambda: torch.ones(1)), Contender("peer", failing)], (1,), share)


def test_a_contest_ends_where_others_took_a_peers_memory(monkeypatch, gpu):
    gpu(100, 899)
    with pytest.raises(MemoryTaken):
        contest(monkeypatch, PROMISED)


@pytest.mark.parametrize(
    ("share", "reason"),
    [
        (PROMISED, "needs more GPU memory than the 0.0 GB that a cell may take"),
        (ALONE, "needs more GPU memory than the 0.0 GB that a cell may take"),
        (None, "out of memory"),
    ],
)
def test_a_peer_that_needs_too_much_is_named(monkeypatch, gpu, share, reason):
    gpu(100, 900)
    assert contest(monkeypatch, share)._errors == {"peer": reason}


@pytest.mark.gpu(alone=True)
def test_a_share_is_kept_to():
    share = MemoryShare(2**30, is_promised=True)
    try:
        share.keep_to()
        with pytest.raises(torch.OutOfMemoryError) as refusal:
            torch.empty(2**31, dtype=torch.uint8, device="cuda")
        assert share.taken(refusal.value) is None
        free_bytes, _ = torch.cuda.mem_get_info()
        more = MemoryShare(free_bytes + torch.cuda.memory_reserved() + 2**30, is_promised=True)
        assert isinstance(more.taken(refusal.value), LaunchError)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
