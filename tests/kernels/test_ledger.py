import pytest

from atoffer_rl.errors import AtofferError, BudgetSpent, SchemeError, WorkloadError
from atoffer_rl.kernels.ledger import Ledger
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.measurers.replay import ReplayMeasurer
from atoffer_rl.run import Run
from atoffer_rl.trial import SegmentRequest
from atoffer_rl.workload import Workload
from tests.synthetic import synthetic_table

WORKLOAD = Workload(batch=8, seq_len=128)
CHOICES = LegalSpace(WORKLOAD).choices(Run(10, 11))


class WarmMeasurer(ReplayMeasurer):
    """A live store that already holds some trials."""

    def known(self, request):
        return self.measure([request])[0] if request.choice in CHOICES[:5] else None


class BrokenMeasurer(ReplayMeasurer):
    """Answers that one operator's default is wrong."""

    def measure(self, requests):
        failed = next(trial for trial in self.table.trials if not trial.ok)
        return [failed for _ in requests]


@pytest.fixture(scope="module")
def table():
    return synthetic_table(WORKLOAD, seed=1)


@pytest.fixture
def ledger(table):
    return Ledger(WORKLOAD, ReplayMeasurer(table), units=4)


def test_the_unfused_scheme_is_measured_free_of_charge(ledger):
    scheme, latency_us = ledger.best()
    assert scheme == ledger.space.unfused
    assert latency_us == ledger.unfused_us == sum(ledger.trials[choice].latency_us for choice in scheme.choices)
    assert (ledger.units_spent, ledger.seconds_spent) == (0, 0.0)


def test_a_new_choice_costs_a_unit_and_its_seconds_once(ledger):
    first = ledger.measure(CHOICES[3])
    assert ledger.measure(CHOICES[3]) is first
    assert (ledger.units_spent, ledger.units_left, ledger.cache_hits) == (1, 3, 1)
    assert ledger.seconds_spent == pytest.approx(first.seconds)


def test_what_a_store_holds_is_known_and_free(table):
    ledger = Ledger(WORKLOAD, WarmMeasurer(table), units=0)
    assert set(CHOICES[:5]) <= set(ledger.trials)
    ledger.measure_all(CHOICES[:5])
    assert ledger.units_spent == 0


def test_more_than_is_left_is_refused_before_anything_is_measured(ledger):
    with pytest.raises(BudgetSpent, match="5 new choices"):
        ledger.measure_all(CHOICES[:5])
    assert ledger.units_spent == 0
    ledger.measure_all(CHOICES[:4])
    assert ledger.spent


def test_seconds_are_a_budget_too(table):
    ledger = Ledger(WORKLOAD, ReplayMeasurer(table), seconds=1e-3)
    assert ledger.reserve()
    ledger.measure_reserved(CHOICES[1])
    assert ledger.spent
    assert not ledger.reserve()
    with pytest.raises(BudgetSpent):
        ledger.measure(CHOICES[2])


def test_reserved_units_are_kept_for_whoever_reserved_them(ledger):
    assert [ledger.reserve() for _ in range(5)] == [True] * 4 + [False]
    assert (ledger.units_left, ledger.units_free) == (4, 0)
    assert not ledger.spent
    with pytest.raises(BudgetSpent):
        ledger.measure(CHOICES[0])
    ledger.measure_reserved(CHOICES[0])
    ledger.release()
    assert (ledger.units_left, ledger.units_free, ledger.reserved) == (3, 1, 2)
    ledger.measure_reserved(CHOICES[0])
    assert (ledger.units_left, ledger.units_free, ledger.reserved) == (3, 2, 1)


def test_the_recommendation_is_the_best_of_what_was_measured(ledger):
    ledger.measure_all(CHOICES[:4])
    scheme, latency_us = ledger.best()
    assert latency_us <= ledger.unfused_us
    assert latency_us == pytest.approx(sum(ledger.trials[choice].latency_us for choice in scheme.choices))


def test_a_failing_unfused_scheme_leaves_no_reference(table):
    with pytest.raises(SchemeError, match="unfused scheme fails"):
        Ledger(WORKLOAD, BrokenMeasurer(table))


def test_trials_answer_what_was_asked(ledger):
    trial = ledger.measure(CHOICES[2])
    assert trial == ledger.measurer.measure([SegmentRequest(WORKLOAD, CHOICES[2])])[0]


def test_a_ledger_is_of_a_workload_and_a_measurer(table):
    with pytest.raises(WorkloadError, match="of a Workload, not of None"):
        Ledger(None, ReplayMeasurer(table))
    with pytest.raises(WorkloadError, match="what open_measurer gives, not 5"):
        Ledger(WORKLOAD, 5)


@pytest.mark.parametrize("budget", ["units", "seconds"])
@pytest.mark.parametrize("value", [10**5000, -(10**5000), [10**5000]], ids=["large", "small", "list"])
def test_a_budget_that_is_too_large_to_show(table, budget, value):
    with pytest.raises(AtofferError, match=f"{budget} must be a"):
        Ledger(WORKLOAD, ReplayMeasurer(table), **{budget: value})


def test_infinite_seconds_are_no_limit(table):
    ledger = Ledger(WORKLOAD, ReplayMeasurer(table), 4, float("inf"))
    assert ledger.seconds is None
    assert not ledger.spent


def test_a_spent_budget_exhausts_a_ledger(ledger):
    assert not ledger.exhausted
    ledger.measure_all(CHOICES[:4])
    assert ledger.exhausted
    assert not ledger.complete


def test_so_does_knowing_every_choice(table):
    ledger = Ledger(WORKLOAD, ReplayMeasurer(table))
    ledger.measure_all(ledger.space.all_choices[:-1])
    assert not ledger.complete
    assert not ledger.exhausted
    ledger.measure_all(ledger.space.all_choices[-1:])
    assert ledger.complete
    assert ledger.exhausted
    assert not ledger.spent
