"""A broken promise of GPU memory is told apart from a peer that needs more than it may have."""

import pytest
import torch

from atoffer_rl.bench.contest import Contender, Contest
from atoffer_rl.bench.memory import MemoryShare
from atoffer_rl.errors import LaunchError

SHARE = MemoryShare(1000)
RAN_OUT = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ..."),
    MemoryError("Out of memory allocating 512 bytes"),
)


@pytest.fixture
def gpu(monkeypatch):
    """Says how much memory is free, and how much torch has already."""

    def say(free_bytes, reserved_bytes):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free_bytes, 2**40))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: reserved_bytes)

    return say


@pytest.mark.parametrize("error", RAN_OUT)
def test_memory_that_others_took_is_missed(gpu, error):
    gpu(100, 899)
    with pytest.raises(LaunchError, match="fewer --jobs"), SHARE.missed():
        raise error


@pytest.mark.parametrize("error", RAN_OUT)
def test_who_wants_more_than_was_promised_is_told_so(gpu, error):
    gpu(100, 900)
    with pytest.raises(type(error), match="ut of memory"), SHARE.missed():
        raise error


def test_other_errors_are_let_through(gpu):
    gpu(0, 0)
    with pytest.raises(ValueError, match="not today"), SHARE.missed():
        raise ValueError("not today")


def contest(share):
    """Of one that finds no memory."""

    def failing():
        raise RAN_OUT[0]

    return Contest([Contender("ours", failing)], (1,), share)


def test_a_contender_that_finds_no_memory_ends_a_contest_only_where_others_took_it(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    gpu(100, 899)
    with pytest.raises(LaunchError, match="fewer --jobs"):
        contest(SHARE)
    with pytest.raises(LaunchError, match=r"^out of memory$"):
        contest(None)
    gpu(100, 900)
    with pytest.raises(LaunchError, match=r"^out of memory$"):
        contest(SHARE)


@pytest.mark.gpu(alone=True)
def test_a_share_is_kept_to():
    try:
        MemoryShare(2**30).keep_to()
        with pytest.raises(torch.OutOfMemoryError), MemoryShare(2**30).missed():
            torch.empty(2**31, dtype=torch.uint8, device="cuda")
        free_bytes, _ = torch.cuda.mem_get_info()
        with pytest.raises(LaunchError, match="fewer --jobs"):
            MemoryShare(free_bytes + torch.cuda.memory_reserved() + 2**30).check()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
