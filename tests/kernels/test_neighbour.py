"""Segments are timed after a neighbour: what a launch adds to a stream of them."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atoffer_rl.errors import LaunchError
from atoffer_rl.kernels import timing
from atoffer_rl.kernels.compiler import compile_kernel
from atoffer_rl.kernels.neighbour import BLOCKS, LONG_ENTRY, THREADS, VECTOR_BYTES, load_neighbour, neighbour_program
from atoffer_rl.kernels.timing import Neighbour, SegmentContext, Timing

L2_BYTES = 50 * 2**20


class Spy:
    """A launchable that notes what it is given."""

    descriptor: Mapping[str, str] = {}

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def launch(self, pointers: Mapping[str, int], stream: int) -> None:
        self.seen.append((pointers["weight"], stream))

    def follow(self, stream: int) -> None:
        self.seen.append("neighbour")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_it_compiles(arch: str) -> None:
    assert compile_kernel(neighbour_program(), arch)


def neighbour_of(spy: Spy, latency_us: float) -> Neighbour:
    neighbour = Neighbour(spy.follow, lambda stream: spy.seen.append("long"))
    neighbour.latency_us = latency_us
    return neighbour


def timed_as(monkeypatch: pytest.MonkeyPatch, *timings: tuple[float, ...]) -> list[dict[str, int]]:
    """Has each call of `time_launches` run its launches once and give the next of `timings`; notes what was asked."""
    left, asked = list(timings), []

    def time_launches(stream: Any, launches: Any, replays: int, kernels: int = 1) -> Timing:
        asked.append({"replays": replays, "kernels": kernels})
        for launch in launches:
            launch()
        return Timing(left.pop(0))

    monkeypatch.setattr(timing, "time_launches", time_launches)
    return asked


STREAM = SimpleNamespace(ptr=7)


def test_every_launch_follows_one_and_pays_only_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    spy, asked = Spy(), timed_as(monkeypatch, (5.0, 6.0, 7.0))
    weight = torch.ones(3 * 2**20, dtype=torch.float16)
    context = SegmentContext({}, {"weight": weight}, {}, L2_BYTES)
    timed = context.time(STREAM, spy, neighbour_of(spy, 1.5), replays=3)
    assert timed.samples_us == (3.5, 4.5, 5.5)
    assert asked == [{"replays": 3, "kernels": 2}]
    assert spy.seen[::2] == ["neighbour"] * len(context.pointers)
    assert spy.seen[1::2] == [(pointers["weight"], 7) for pointers in context.pointers]
    assert len(context.pointers) * weight.nbytes > 2 * L2_BYTES


def test_its_own_latency_is_what_it_adds_to_a_stream_of_long_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy()
    asked = timed_as(monkeypatch, (8.0, 6.5, 7.0), (9.0, 7.0), (6.0, 7.0), (6.5, 7.0), (5.5,), (6.25,), (5.5,), (6.5,))
    neighbour = neighbour_of(spy, 5.0)
    neighbour.time(STREAM)
    assert neighbour.latency_us == 0.5
    assert [each["kernels"] for each in asked] == [1, 2, 1, 2]
    assert spy.seen == ["long", "neighbour", "long"] * 2
    neighbour.time(STREAM)
    assert neighbour.latency_us == 0.75


def test_a_neighbour_that_was_disturbed_is_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy()
    timed_as(monkeypatch, (2.0, 6.0), (4.0, 9.0), (5.5, 9.0), (4.5,), (6.0,), (2.0, 6.0))
    neighbour = neighbour_of(spy, 5.0)
    context = SegmentContext({}, {"weight": torch.ones(1)}, {}, 1)
    assert context.time(STREAM, spy, neighbour, replays=2).samples_us == (0.5, 4.5)
    assert neighbour.latency_us == 1.5


def test_timings_that_stay_disturbed_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy()
    timed_as(monkeypatch, *[(2.0,), (4.0,), (9.0,), (4.0,), (9.0,)] * 3)
    context = SegmentContext({}, {"weight": torch.ones(1)}, {}, 1)
    with pytest.raises(LaunchError, match="leave the GPU to this process alone"):
        context.time(STREAM, spy, neighbour_of(spy, 5.0), replays=1)


@pytest.mark.gpu(alone=True)
def test_a_neighbour_copies_and_costs_beside_long_kernels_what_it_costs_alone() -> None:
    import cupy

    from atoffer_rl.kernels.launch import load_program
    from atoffer_rl.kernels.machine import current_device

    device, stream = current_device(), cupy.cuda.Stream(non_blocking=True)
    program = neighbour_program()
    cubin = compile_kernel(program, device.arch)
    source = torch.randn(BLOCKS * THREADS * VECTOR_BYTES // 4, device="cuda")
    target = torch.zeros_like(source)
    context = SegmentContext({"source": source}, {}, {"target": target}, device.l2_bytes)
    torch.cuda.synchronize()
    neighbour, short = load_neighbour(cubin), load_program(program, cubin)
    long = load_program(replace(program, entry=LONG_ENTRY), cubin)
    neighbour.time(stream)
    timed = context.time(stream, short, neighbour)
    assert torch.equal(source, target)
    alone, long_alone = (
        timing.time_launches(stream, [partial(each.launch, context.pointers[0], stream.ptr)]) for each in (short, long)
    )
    assert neighbour.latency_us == pytest.approx(alone.latency_us, rel=0.2)
    assert timed.latency_us == pytest.approx(alone.latency_us, rel=0.2)
    assert long_alone.latency_us > 2.0
