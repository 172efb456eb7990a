"""Forwards that are worth timing: the least sums, then others spread over the range."""

from atoffer_rl.kernels.forward_schemes import forward_schemes
from atoffer_rl.kernels.registry import ALL_RUNS
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.table_summary import scheme_sum_us

RUNS = frozenset(run for run in ALL_RUNS if run.first == run.last) | {Run(2, 5), Run(8, 9), Run(3, 4)}


def test_forwards_hold_the_least_sums_and_spread_over_the_others() -> None:
    by_choice = {
        Choice(run, "chain", (("number", number),)): 1.0 + number * (1 + run.first)
        for run in RUNS
        for number in range(5)
    }
    schemes = forward_schemes(by_choice, 100, seed=1)
    sums = [scheme_sum_us(scheme, by_choice) for scheme in schemes]
    assert len(set(schemes)) == 100
    assert sums[:32] == sorted(sums[:32])
    assert max(sums[:32]) <= min(sums[32:])
    assert max(sums) > 4 * min(sums)
    assert forward_schemes(by_choice, 100, seed=1) == schemes
    assert len(forward_schemes(by_choice, 10, seed=1)) == 10
    assert forward_schemes({}, 10, seed=1) == []
