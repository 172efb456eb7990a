"""Timing of torch callables through CUDA graphs, contenders taking turns so that clocks drift for all alike."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

WARM_UPS = 3
WARM_UP_SECONDS = 0.1
GRAPH_LAUNCHES = (1, 4, 20)
REPLAY_US = 1_000.0
LONG_REPLAY_US, FEWEST_SAMPLES = 2_000.0, 20


class Replay(NamedTuple):
    """A captured graph to time.

    Attributes:
        graph: What is replayed.
        launches: Calls that it holds; a sample is the replay's time over this.
        rough_us: About how long a replay takes.
    """

    graph: torch.cuda.CUDAGraph
    launches: int
    rough_us: float

    @property
    def is_long(self) -> bool:
        """Whether it is so long that the host's part in a replay does not count, and samples cost much."""
        return self.rough_us > LONG_REPLAY_US


def capture(function: Callable[[], object], launches: Sequence[int], pool: Any) -> dict[int, torch.cuda.CUDAGraph]:
    """CUDA graphs of so many calls of `function` each, which is warmed up on a side stream first.

    Args:
        function: What to capture.
        launches: Calls of each graph.
        pool: Handle of memory that the graphs share with others that are never replayed at the same time.

    Raises:
        RuntimeError: If the function cannot be captured.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            function()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graphs = {}
    for count in launches:
        graphs[count] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[count], pool=pool):
            for _ in range(count):
                function()
    return graphs


def launches_for(sizes: Sequence[int], launch_us: float) -> int:
    """The largest of `sizes` whose replay is not too long where a launch takes `launch_us`; else the smallest."""
    return max((size for size in sizes if size * launch_us <= REPLAY_US), default=min(sizes))


def choose_replay(graphs: Mapping[int, torch.cuda.CUDAGraph]) -> Replay:
    """The graph to time, by a first rough timing of the smallest."""
    smallest = min(graphs)
    graphs[smallest].replay()
    launch_us = _replay_us(graphs[smallest]) / smallest
    launches = launches_for(list(graphs), launch_us)
    return Replay(graphs[launches], launches, launches * launch_us)


def time_in_turns(contenders: Mapping[str, Replay], replays: int) -> dict[str, list[float]]:
    """Microseconds a launch, at least 20 samples each, the graphs replayed in turn.

    Args:
        contenders: What to time, by name.
        replays: Samples to take of each; of long ones, as few as count.
    """
    for replay in contenders.values():
        _warm_up(replay.graph)
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(replays):
        for name, replay in contenders.items():
            if replay.is_long and turn >= FEWEST_SAMPLES:
                continue
            if not replay.is_long:
                replay.graph.replay()  # the host is ahead of the GPU when the timed one is enqueued
            samples[name].append(round(_replay_us(replay.graph) / replay.launches, 3))
    return samples


def _warm_up(graph: torch.cuda.CUDAGraph) -> None:
    start = time.perf_counter()
    for _ in range(WARM_UPS):
        graph.replay()
        torch.cuda.synchronize()
        if time.perf_counter() - start > WARM_UP_SECONDS:
            return


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1000.0
