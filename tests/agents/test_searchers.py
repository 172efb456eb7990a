"""Random search and the oracle."""

from itertools import islice

import pytest

from atoffer_rl.agents import oracle as oracle_module
from atoffer_rl.agents import random_search
from atoffer_rl.agents.oracle import known_oracle_us, oracle
from atoffer_rl.agents.registry import SEARCHERS, searcher_named
from atoffer_rl.errors import AtofferError, NotRecorded
from atoffer_rl.kernels.ledger import Ledger
from atoffer_rl.kernels.measurers.replay import ReplayMeasurer
from atoffer_rl.records import RecordedTable
from atoffer_rl.table_summary import best_recorded
from tests.agents.conftest import WORKLOAD


def test_random_search_spends_its_budget_and_no_more(session_of):
    session = session_of(units=37)
    result = random_search.search(session)
    assert result.units == session.ledger.units_spent == 37
    assert len(result.history) == 38
    assert result.latency_us <= result.unfused_us


def test_random_search_is_seeded(session_of):
    schemes = [random_search.search(session_of(seed=seed)) for seed in (1, 1, 2)]
    assert schemes[0].scheme == schemes[1].scheme
    assert schemes[0].history != schemes[2].history


def test_random_search_visits_everything_once(session_of):
    session = session_of()
    order = list(shuffled := random_search.shuffled_choices(session))
    assert len(order) == len(set(order)) == len(session.ledger.space.all_choices) - 15
    assert next(shuffled, None) is None


def test_random_search_stops_at_seconds(session_of):
    session = session_of(units=None)
    session.ledger.seconds = 3.0
    random_search.search(session)
    last = list(session.ledger.trials.values())[-1]
    assert session.ledger.seconds_spent - last.seconds < 3.0 <= session.ledger.seconds_spent


def test_without_a_limit_random_search_finds_the_oracle(session_of, oracle_us):
    assert random_search.search(session_of(units=None)).latency_us == pytest.approx(oracle_us)


def test_oracle_is_the_best_of_the_table(session_of, table, measurer):
    scheme, latency_us = oracle(WORKLOAD, measurer)
    assert latency_us == pytest.approx(best_recorded(table, WORKLOAD)[1])
    result = oracle_module.search(session_of(units=3))
    assert result.scheme == scheme
    assert result.regret == pytest.approx(0.0)


def test_an_incomplete_table_has_no_oracle(table):
    complete = len(table.trials)
    part = RecordedTable(table.header, table.trials[: complete // 2] + table.trials[complete // 2 + 1 :])
    assert known_oracle_us(WORKLOAD, ReplayMeasurer(part)) is None


def test_the_oracle_needs_a_recorded_workload(session_of):
    class Live(ReplayMeasurer):
        name = "cuda"

    session = session_of()
    live = Live(session.ledger.measurer.table)
    session.ledger = Ledger(WORKLOAD, live)
    assert known_oracle_us(WORKLOAD, live) is None
    with pytest.raises(NotRecorded, match="replay"):
        oracle_module.search(session)


def test_searchers_have_names():
    assert {"oracle", "ppo", "random"} <= set(SEARCHERS)
    assert searcher_named("random") is random_search.search
    with pytest.raises(AtofferError, match="unknown searcher 'ants': use one of"):
        searcher_named("ants")


def test_batches_do_not_outrun_the_budget(session_of):
    session = session_of(units=random_search.BATCH + 1)
    random_search.search(session)
    assert list(islice(session.ledger.trials, 15, None)) == list(session.charged)
    assert session.ledger.units_spent == random_search.BATCH + 1
