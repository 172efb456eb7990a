import json

import pytest

from atoffer_rl.agents.random_search import shuffled_choices
from atoffer_rl.agents.session import Point, measured_us
from atoffer_rl.shortest_path import CutGraph


def test_history_has_a_point_for_every_trial(session_of):
    session = session_of(units=12)
    order = shuffled_choices(session)
    session.ledger.measure_all([next(order) for _ in range(5)])
    session.note()
    session.ledger.measure(next(order))
    session.note()
    session.note()
    assert [point.units for point in session.history] == [0, 1, 2, 3, 4, 5, 6]
    graph, seconds = CutGraph(), 0.0
    for count, trial in enumerate(session.ledger.trials.values(), 1 - 15):
        if trial.ok:
            graph.lower(trial.run, trial.latency_us)
        seconds += trial.seconds if count > 0 else 0.0
        if count >= 0:
            assert session.history[count].best_us == graph.best_us
            assert session.history[count].seconds == pytest.approx(seconds)
    assert session.history[0] == Point(0, 0.0, session.ledger.unfused_us)


def test_result_is_the_shortest_path_and_its_regret(session_of, oracle_us):
    session = session_of()
    session.ledger.measure_all(list(shuffled_choices(session))[:20])
    result = session.result("plain", rollout=session.ledger.space.unfused)
    assert result.latency_us == session.ledger.graph.best_us == measured_us(session.ledger, result.scheme)
    assert result.regret == pytest.approx(result.latency_us / oracle_us - 1)
    assert result.rollout_us == pytest.approx(result.unfused_us)
    assert result.rollout_regret >= result.regret >= 0
    assert result.units == 20
    assert json.loads(json.dumps(result.to_json()))["regret"] == result.regret


def test_an_unmeasured_scheme_has_no_latency(session_of, measurer):
    from atoffer_rl.agents.oracle import oracle

    session = session_of()
    assert measured_us(session.ledger, oracle(session.workload, measurer)[0]) == float("inf")


def test_trials_and_result_are_written(session_of, tmp_path):
    session = session_of(folder=tmp_path)
    session.ledger.measure_all(list(shuffled_choices(session))[:3])
    result = session.result("plain")
    session.log.close()
    lines = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    assert [line["units"] for line in lines] == [1, 2, 3]
    assert lines[-1]["best_us"] == result.latency_us
    written = json.loads((tmp_path / "result.json").read_text())
    assert written["workload"] == session.workload.to_json()
    assert written["latency_us"] == result.latency_us


def test_what_was_restored_is_charged_and_not_written_again(session_of, measurer, tmp_path):
    from atoffer_rl.agents.log import RunLog
    from atoffer_rl.agents.session import Session
    from atoffer_rl.kernels.ledger import Ledger

    before = session_of()
    paid = list(shuffled_choices(before))[:4]
    ledger = Ledger(before.workload, measurer, 5)
    ledger.restore(paid)
    session = Session(ledger, RunLog(tmp_path), restored=tuple(paid))
    session.ledger.measure(next(shuffled_choices(session)))
    session.note()
    assert ledger.spent
    assert session.charged[:4] == tuple(paid)
    assert len(session.charged) == 5
    session.log.close()
    assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == 1
