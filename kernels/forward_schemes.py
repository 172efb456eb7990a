"""Which schemes' whole forwards are worth timing, once every choice's latency is known."""

from collections.abc import Iterator
from typing import TypeVar

import numpy as np

from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice, Scheme
from atoffer_rl.shortest_path import CutGraph, best_schemes
from atoffer_rl.table_summary import FINALISTS, scheme_sum_us

SPREAD_DRAWS = 4000
SPREAD_QUANTILE = 0.9
Option = TypeVar("Option")


def forward_schemes(latencies_us: dict[Choice, float], count: int, seed: int) -> list[Scheme]:
    """Schemes whose forwards are worth timing: the 32 least sums, then others spread evenly over the range of sums.

    Args:
        latencies_us: Latency of each choice that ran.
        count: How many schemes.
        seed: Of the schemes that are drawn.
    """
    finalists = [scheme for _, scheme in best_schemes(latencies_us, min(FINALISTS, count))]
    drawn = {scheme: scheme_sum_us(scheme, latencies_us) for scheme in _drawn_schemes(latencies_us, seed)}
    others = sorted((scheme for scheme in drawn if scheme not in finalists), key=lambda scheme: drawn[scheme])
    others = others[: max(1, int(SPREAD_QUANTILE * len(others)))]
    wanted = count - len(finalists)
    if not others or wanted <= 0:
        return finalists
    sums = np.array([drawn[scheme] for scheme in others])
    chosen: list[int] = []
    free = np.ones(len(others), bool)
    for target in np.geomspace(sums[0], sums[-1], min(wanted, len(others))):
        index = int(np.argmin(np.where(free, np.abs(sums - target), np.inf)))
        free[index] = False
        chosen.append(index)
    return finalists + [others[index] for index in sorted(chosen)]


def _drawn_schemes(latencies_us: dict[Choice, float], seed: int) -> Iterator[Scheme]:
    """Random schemes, from nearly the best (few random decisions) to entirely random."""
    source = np.random.default_rng(seed)
    by_run: dict[Run, list[Choice]] = {}
    for choice in sorted(latencies_us, key=lambda choice: latencies_us[choice]):
        by_run.setdefault(choice.run, []).append(choice)
    graph = CutGraph({run: latencies_us[choices[0]] for run, choices in by_run.items()})
    if graph.best_us == float("inf"):
        return
    onward = _onward_runs(by_run, graph)
    for _ in range(SPREAD_DRAWS):
        yield _draw(by_run, onward, source)


def _onward_runs(by_run: dict[Run, list[Choice]], graph: CutGraph) -> dict[int, list[Run]]:
    """For each cut position, the runs from which the end can be reached, the one on the best path first."""
    onward: dict[int, list[Run]] = {}
    for run in by_run:
        if graph.suffix_us[run.last + 1] < float("inf"):
            onward.setdefault(run.first, []).append(run)
    for runs in onward.values():
        runs.sort(key=lambda run: graph.latencies_us[run] + graph.suffix_us[run.last + 1])
    return onward


def _draw(by_run: dict[Run, list[Choice]], onward: dict[int, list[Run]], source: np.random.Generator) -> Scheme:
    wildness = source.random()
    choices: list[Choice] = []
    position = 0
    while position in onward:
        run = _pick(onward[position], wildness, source)
        choices.append(_pick(by_run[run], wildness, source))
        position = run.last + 1
    return Scheme(tuple(choices))


def _pick(options: list[Option], wildness: float, source: np.random.Generator) -> Option:
    return options[int(source.integers(len(options)))] if source.random() < wildness else options[0]
