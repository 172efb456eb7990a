"""The best way to cut the layer, given the best known latency of each run: a shortest path over cut positions."""

from collections.abc import Mapping
from heapq import nsmallest
from math import inf

from atoffer_rl.operators import OPERATOR_COUNT
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice, Scheme


class CutGraph:
    """Cut positions 0 to 15 as nodes, runs as edges weighted with their best known latency.

    `lower` records a better latency; the distances from the start (`prefix_us`) and to the end
    (`suffix_us`) stay exact after every call.
    """

    def __init__(self, latencies_us: Mapping[Run, float] | None = None) -> None:
        self.latencies_us: dict[Run, float] = dict(latencies_us or {})
        self.prefix_us = [0.0] + [inf] * OPERATOR_COUNT
        self.suffix_us = [inf] * OPERATOR_COUNT + [0.0]
        self._refresh()

    @property
    def best_us(self) -> float:
        """Latency of the best known partition; infinite while the known runs do not cover the layer."""
        return self.prefix_us[OPERATOR_COUNT]

    def lower(self, run: Run, latency_us: float) -> bool:
        """Record that `run` can be executed in `latency_us`; says whether that is news."""
        if latency_us >= self.latencies_us.get(run, inf):
            return False
        self.latencies_us[run] = latency_us
        self._refresh()
        return True

    def best_partition(self) -> tuple[Run, ...]:
        """The runs of the best known partition; empty while there is none."""
        if self.best_us == inf:
            return ()
        runs: list[Run] = []
        position = 0
        while position < OPERATOR_COUNT:
            onward = [run for run in self.latencies_us if run.first == position]
            runs.append(min(onward, key=lambda run: self.latencies_us[run] + self.suffix_us[run.last + 1]))
            position = runs[-1].last + 1
        return tuple(runs)

    def _refresh(self) -> None:
        prefix, suffix = [0.0] + [inf] * OPERATOR_COUNT, [inf] * OPERATOR_COUNT + [0.0]
        edges = sorted((run.first, run.last + 1, latency_us) for run, latency_us in self.latencies_us.items())
        for first, end, latency_us in edges:
            prefix[end] = min(prefix[end], prefix[first] + latency_us)
        for first, end, latency_us in reversed(edges):
            suffix[first] = min(suffix[first], suffix[end] + latency_us)
        self.prefix_us, self.suffix_us = prefix, suffix


def best_schemes(latencies_us: Mapping[Choice, float], count: int) -> list[tuple[float, Scheme]]:
    """The `count` schemes of least summed latency, best first, from the latency of each choice.

    A k-shortest path: the best `count` ways to reach every cut position, built from those of earlier ones.
    """
    by_end: list[list[Choice]] = [[] for _ in range(OPERATOR_COUNT + 1)]
    for choice in latencies_us:
        by_end[choice.run.last + 1].append(choice)
    reached: list[list[tuple[float, tuple[Choice, ...]]]] = [[(0.0, ())]]
    for choices in by_end[1:]:
        ways = (
            (before_us + latencies_us[choice], (*before, choice))
            for choice in choices
            for before_us, before in reached[choice.run.first]
        )
        reached.append(nsmallest(count, ways, key=lambda way: way[0]))
    return [(total_us, Scheme(choices)) for total_us, choices in reached[OPERATOR_COUNT]]
