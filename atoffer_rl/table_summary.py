"""What a recorded table says: the oracle, and how well sums of segments predict whole forwards."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from atoffer_rl.errors import NotRecorded
from atoffer_rl.records import RecordedTable, describe
from atoffer_rl.scheme import Choice, Scheme
from atoffer_rl.shortest_path import best_schemes
from atoffer_rl.trial import Trial
from atoffer_rl.workload import Workload

FINALISTS, FORWARDS = 32, 200
"""Least sums of a workload, and all schemes, whose whole forwards are recorded."""


@dataclass(frozen=True)
class SumCheck:
    """Sums of segment latencies against measured forwards of one workload.

    Attributes:
        forwards: Forwards that ran.
        failed: Forwards that failed.
        rank_correlation: Spearman's, of sums against forwards.
        oracle_us: The oracle's summed latency of one layer.
        oracle_forward_us: Its measured whole forward.
        best_forward_us: The fastest measured forward among the schemes of the 32 least sums.
        sum_over_forward: Median of layers * sum / forward.
    """

    forwards: int
    failed: int
    rank_correlation: float
    oracle_us: float
    oracle_forward_us: float
    best_forward_us: float
    sum_over_forward: float

    @property
    def oracle_excess(self) -> float:
        """How much slower the oracle's forward is than the best of the finalists."""
        return self.oracle_forward_us / self.best_forward_us - 1.0


def latencies(trials: dict[Choice, Trial]) -> dict[Choice, float]:
    """Latency in us of each choice that ran."""
    return {choice: trial.latency_us for choice, trial in trials.items() if trial.latency_us is not None}


def best_recorded(
    table: RecordedTable, workload: Workload, legal: Container[Choice] | None = None
) -> tuple[Scheme, float]:
    """The best scheme of a recorded workload, exactly, and its layer latency in us.

    Args:
        table: A recorded table.
        workload: One of its workloads.
        legal: The choices that the scheme may have; None means all that were recorded.

    Raises:
        NotRecorded: If the recorded choices do not cover the layer.
    """
    best = best_schemes(_allowed(latencies(table.segments(workload)), legal), 1)
    if not best:
        raise NotRecorded(f"the recorded choices do not cover a layer of {describe(workload)}")
    return best[0][1], best[0][0]


def best_with(latencies_us: dict[Choice, float], fallback: Scheme) -> Scheme:
    """The best scheme of measured choices; segments of `fallback` where they do not cover the layer, as few as can be.

    Args:
        latencies_us: Latency of each choice that was measured.
        fallback: What stands in, whole segments of it.
    """
    beyond_us = 1.0 + sum(latencies_us.values())  # more than any measured scheme takes
    return best_schemes(dict.fromkeys(fallback.choices, beyond_us) | latencies_us, 1)[0][1]


def _allowed(latencies_us: dict[Choice, float], legal: Container[Choice] | None) -> dict[Choice, float]:
    return {choice: us for choice, us in latencies_us.items() if legal is None or choice in legal}


def scheme_sum_us(scheme: Scheme, latencies_us: dict[Choice, float]) -> float:
    """The summed latency of one layer under `scheme`, infinite where a choice failed."""
    return sum(latencies_us.get(choice, float("inf")) for choice in scheme.choices)


def check_sums(table: RecordedTable, workload: Workload, legal: Container[Choice] | None = None) -> SumCheck:
    """How well sums predict the recorded forwards of `workload`.

    Args:
        table: A recorded table.
        workload: One of its workloads.
        legal: The choices that the oracle and the finalists may have; None means all that were recorded.

    Raises:
        NotRecorded: If the oracle's forward was not recorded.
    """
    by_choice = latencies(table.segments(workload))
    recorded = table.forwards(workload)
    forwards = {scheme: trial.latency_us for scheme, trial in recorded.items() if trial.latency_us is not None}
    finalists = best_schemes(_allowed(by_choice, legal), FINALISTS)
    if not finalists or finalists[0][1] not in forwards:
        raise NotRecorded(f"the oracle's forward of {describe(workload)} was not recorded: run atoffer record again")
    # To the picosecond, so that equal sums tie in whatever order they were added.
    sums = [round(scheme_sum_us(scheme, by_choice), 6) for scheme in forwards]
    measured = list(forwards.values())
    return SumCheck(
        forwards=len(forwards),
        failed=len(recorded) - len(forwards),
        rank_correlation=spearman(sums, measured),
        oracle_us=finalists[0][0],
        oracle_forward_us=forwards[finalists[0][1]],
        best_forward_us=min(forwards[scheme] for _, scheme in finalists if scheme in forwards),
        sum_over_forward=median(workload.layers * total / full for total, full in zip(sums, measured, strict=True)),
    )


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """Spearman's rank correlation; 0 where one side does not vary."""
    a, b = _ranks(left), _ranks(right)
    if len(left) < 2 or not a.std() or not b.std():
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Ranks from 0, ties sharing their mean."""
    _, inverse, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts + 1) / 2)[inverse], np.float64)
