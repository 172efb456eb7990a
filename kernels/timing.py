"""Latency in context: launches in CUDA graphs, activations warm, weights cold, medians of many replays.

A segment is launched with weight sets in rotation, so many that a set has left the L2 cache when its turn comes
again; activations are the same every time, as they are when the segment before has just written them. Each launch
follows one of a small kernel, whose own latency is subtracted: see neighbour.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, cycle, islice, pairwise
from math import ceil, inf
from statistics import median
from typing import Any, TypeAlias

from atoffer_rl.errors import DisturbedTiming, LaunchError
from atoffer_rl.kernels.launch import Launchable
from atoffer_rl.tensors import ALIGNMENT_BYTES

MIN_REPLAYS = 24
REPLAY_US = 200.0
WARM_UP_US = 2_000.0
PROBE_LAUNCHES = 16
MAX_GRAPH_LAUNCHES = 512
MAX_WEIGHT_SETS = 128
COLD_FACTOR = 2
NEIGHBOUR_REPLAYS = 200
ATTEMPTS = 3
Launch: TypeAlias = Callable[[], None]
StreamLaunch: TypeAlias = Callable[[int], None]
"""Enqueues work on the stream of that handle."""


@dataclass(frozen=True)
class Timing:
    """Timed replays.

    Attributes:
        samples_us: Of each replay, the mean latency of a launch.
    """

    samples_us: tuple[float, ...]

    @property
    def latency_us(self) -> float:
        """Their median."""
        return median(self.samples_us)


class Neighbour:
    """The kernel before every timed launch of a segment: see neighbour.py.

    Its own latency is what it adds to a stream of long kernels, where nothing waits for a launch.

    Args:
        launch: Enqueues it on the stream of that handle.
        launch_long: Enqueues a kernel that takes longer than a launch.

    Attributes:
        launch: The same.
        latency_us: Of one launch: the least seen of the long kernels with it, less the least seen of them alone.
    """

    def __init__(self, launch: StreamLaunch, launch_long: StreamLaunch) -> None:
        self.launch = launch
        self._launch_long = launch_long
        self._long_us = self._both_us = self.latency_us = inf

    def time(self, stream: Any) -> None:
        """Time it.

        Raises:
            LaunchError: If a launch fails or is not captured.
        """
        long = partial(self._launch_long, stream.ptr)

        def both() -> None:
            self.launch(stream.ptr)
            long()

        for _ in range(2):  # were the long kernels slowed down alone, the neighbour would seem too quick
            self._long_us = min(self._long_us, *time_launches(stream, [long], NEIGHBOUR_REPLAYS).samples_us)
            self._both_us = min(self._both_us, *time_launches(stream, [both], NEIGHBOUR_REPLAYS, kernels=2).samples_us)
        self.latency_us = self._both_us - self._long_us


class CapturedGraph:
    """Launches captured from a stream, to be replayed as one.

    Args:
        stream: A CuPy stream that is not the legacy default stream, which is never captured.
        launches: Each enqueues its work on that stream.
        kernels: Kernels that each enqueues at least.

    Raises:
        LaunchError: If the graph has fewer nodes than kernels were enqueued: some of them went elsewhere.
    """

    def __init__(self, stream: Any, launches: Sequence[Launch], kernels: int = 1) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._stream = driver.CUstream(stream.ptr)
        self.launches = len(launches)
        graph = self._capture(launches)
        try:
            _, nodes = _checked(driver.cuGraphGetNodes(graph))
            if nodes < kernels * len(launches):
                raise LaunchError(
                    f"{kernels * len(launches)} kernels left {nodes} nodes in the graph: some missed the stream"
                )
            self._executable = _checked(driver.cuGraphInstantiate(graph, 0))
        finally:
            _checked(driver.cuGraphDestroy(graph))

    def _capture(self, launches: Sequence[Launch]) -> Any:
        driver = self._driver
        _checked(driver.cuStreamBeginCapture(self._stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        try:
            for launch in launches:
                launch()
        except BaseException:
            driver.cuStreamEndCapture(self._stream)  # a stream left capturing would fail all that follows
            raise
        return _checked(driver.cuStreamEndCapture(self._stream))

    def replay(self) -> None:
        """Enqueue all of it."""
        _checked(self._driver.cuGraphLaunch(self._executable, self._stream))

    def close(self) -> None:
        """Release it."""
        _checked(self._driver.cuGraphExecDestroy(self._executable))


def _checked(answer: tuple[Any, ...]) -> Any:
    """What a driver call returned.

    Raises:
        LaunchError: If it failed.
    """
    code, *values = answer
    if int(code) != 0:
        raise LaunchError(f"CUDA driver error {code.name}")
    return values[0] if len(values) == 1 else tuple(values)


def time_launches(stream: Any, launches: Sequence[Launch], replays: int = MIN_REPLAYS, kernels: int = 1) -> Timing:
    """Time launches that differ only in what should be cold, in rotation.

    Args:
        stream: The CuPy stream that they enqueue on.
        launches: One for each weight set; a single one where nothing needs to be cold.
        replays: Replays to time, at least 20 for a figure that anyone relies on.
        kernels: Kernels that each launch enqueues at least.

    Raises:
        LaunchError: If a launch fails or is not captured.
    """
    count = ceil(REPLAY_US / _probe_us(stream, launches, kernels))
    groups = _groups(launches, min(count, MAX_GRAPH_LAUNCHES), replays)
    graphs = [CapturedGraph(stream, group, kernels) for group in groups]
    try:
        return _replay(stream, graphs, replays)
    finally:
        stream.synchronize()
        for graph in graphs:
            graph.close()


def time_forward(stream: Any, forward: Launch, kernels: int, replays: int = MIN_REPLAYS) -> Timing:
    """Time a whole forward as one graph.

    Args:
        stream: The CuPy stream that it enqueues on.
        forward: Enqueues it; it was run before.
        kernels: Kernels that it enqueues at least.
        replays: Replays to time.

    Raises:
        LaunchError: If a launch fails or is not captured.
    """
    graph = CapturedGraph(stream, [forward], kernels)
    try:
        return _replay(stream, [graph], replays)
    finally:
        stream.synchronize()
        graph.close()


def _groups(launches: Sequence[Launch], count: int, most: int) -> list[list[Launch]]:
    """Cut the rotation into at most `most` graphs of at least `count` launches."""
    if count >= len(launches):
        rounds = ceil(count / len(launches))
        return [list(launches) * rounds]
    graphs = min(ceil(len(launches) / count), most)
    rotation = cycle(launches)
    return [list(islice(rotation, count)) for _ in range(graphs)]


def _probe_us(stream: Any, launches: Sequence[Launch], kernels: int) -> float:
    """About how long one launch takes, in us; the first one is not timed: it loads code and meets errors."""
    launches[0]()
    stream.synchronize()
    alone_us = _elapsed_us(stream, [launches[-1]])[0]
    if alone_us > REPLAY_US:
        return alone_us
    graph = CapturedGraph(stream, list(islice(cycle(launches), PROBE_LAUNCHES)), kernels)
    graph.replay()
    together_us = _elapsed_us(stream, [graph.replay])[0]
    graph.close()
    return max(together_us / PROBE_LAUNCHES, 0.1)


def _replay(stream: Any, graphs: Sequence[CapturedGraph], replays: int) -> Timing:
    first_us = _elapsed_us(stream, [graph.replay for graph in graphs])
    warm_ups = min(ceil(WARM_UP_US / max(sum(first_us), 1.0)), 10)
    for graph in chain.from_iterable([graphs] * warm_ups):
        graph.replay()
    order = list(islice(cycle(graphs), max(replays, len(graphs))))
    elapsed_us = _elapsed_us(stream, [graph.replay for graph in order])
    return Timing(tuple(total / graph.launches for total, graph in zip(elapsed_us, order, strict=True)))


def _elapsed_us(stream: Any, actions: Sequence[Callable[[], None]]) -> list[float]:
    """Time between events around each of `actions`, which are enqueued without waiting."""
    import cupy

    events = [cupy.cuda.Event() for _ in range(len(actions) + 1)]
    events[0].record(stream)
    for action, event in zip(actions, events[1:], strict=True):
        action()
        event.record(stream)
    events[-1].synchronize()
    return [1e3 * cupy.cuda.get_elapsed_time(*pair) for pair in pairwise(events)]


def weight_set_count(weight_bytes: int, l2_bytes: int) -> int:
    """Weight sets whose rotation exceeds twice the L2 cache, within reason for tiny weights."""
    if not weight_bytes:
        return 1
    return min(COLD_FACTOR * l2_bytes // weight_bytes + 1, MAX_WEIGHT_SETS)


class SegmentContext:
    """Device memory that a run is timed on: one set of activations and results, many sets of weights.

    Args:
        activations: Inputs by name, torch tensors on the device.
        weights: One set of weights by name, likewise; it is copied into as many places as rotation needs.
        results: Results by name, likewise, to be overwritten.
        l2_bytes: The device's L2 cache.
    """

    def __init__(
        self, activations: Mapping[str, Any], weights: Mapping[str, Any], results: Mapping[str, Any], l2_bytes: int
    ) -> None:
        import torch

        sizes = {name: -(-value.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for name, value in weights.items()}
        sets = weight_set_count(sum(sizes.values()), l2_bytes)
        shared = {name: value.data_ptr() for name, value in (*activations.items(), *results.items())}
        self._kept = [activations, results]
        self.pointers: list[dict[str, int]] = [dict(shared) for _ in range(sets)]
        for name, value in weights.items():
            copies = torch.empty((sets, sizes[name]), dtype=torch.uint8, device=value.device)
            copies[:, : value.nbytes] = value.contiguous().view(torch.uint8).reshape(-1)
            self._kept.append({name: copies})
            for index, pointers in enumerate(self.pointers):
                pointers[name] = copies.data_ptr() + index * sizes[name]

    def time(self, stream: Any, launchable: Launchable, neighbour: Neighbour, replays: int = MIN_REPLAYS) -> Timing:
        """What a launch of `launchable` adds to a stream of neighbours, here.

        Raises:
            LaunchError: If a launch fails or is not captured.
            DisturbedTiming: If other work on the GPU leaves nothing to be told.
        """

        def launch_both(pointers: Mapping[str, int]) -> None:
            neighbour.launch(stream.ptr)
            launchable.launch(pointers, stream.ptr)

        launches = [partial(launch_both, pointers) for pointers in self.pointers]
        for _ in range(ATTEMPTS):
            samples_us = time_launches(stream, launches, replays, kernels=2).samples_us
            if min(samples_us) > neighbour.latency_us:
                return Timing(tuple(sample - neighbour.latency_us for sample in samples_us))
            neighbour.time(stream)
        raise DisturbedTiming("timings are disturbed: leave the GPU to this process alone")
