"""Timing of torch callables through CUDA graphs, contenders taking turns so that clocks drift for all alike."""

from collections.abc import Callable, Mapping

import torch

WARM_UPS = 3
REPLAYS = 30


def capture(function: Callable[[], object], launches: int = 1) -> torch.cuda.CUDAGraph:
    """A CUDA graph of `launches` calls of `function`, warmed up on a side stream first.

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
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            function()
    return graph


def time_in_turns(
    graphs: Mapping[str, torch.cuda.CUDAGraph], launches: int = 1, replays: int = REPLAYS
) -> dict[str, list[float]]:
    """Microseconds a launch, `replays` samples each, the graphs replayed in turn.

    Args:
        graphs: What to time, by name.
        launches: Calls that each graph holds; a sample is the replay's time over this.
        replays: Samples to take of each.
    """
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(WARM_UPS + replays):
        for name, graph in graphs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            graph.replay()
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if turn >= WARM_UPS:
                samples[name].append(round(start.elapsed_time(end) * 1000.0 / launches, 3))
    return samples
