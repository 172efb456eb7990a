"""The replay measurer: only what was recorded, at once, with its recorded cost."""

import time
from dataclasses import replace

import pytest

from atoffer_rl.errors import NotRecorded
from atoffer_rl.kernels.measurers.replay import ReplayMeasurer
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.table_summary import best_recorded
from atoffer_rl.trial import ForwardRequest, SegmentRequest
from tests.core.test_records import WORKLOAD, forward, toy_table


def test_it_answers_what_was_recorded_and_knows_nothing_in_advance() -> None:
    table = toy_table()
    scheme = best_recorded(table, WORKLOAD)[0]
    table = replace(table, trials=(*table.trials, forward(scheme, 30.0)))
    measurer = ReplayMeasurer(table)
    segments = [trial for trial in table.trials if trial.choice is not None]
    requests = [SegmentRequest(WORKLOAD, trial.choice) for trial in segments if trial.choice is not None]
    assert measurer.measure(requests) == segments
    assert measurer.measure([ForwardRequest(WORKLOAD, scheme)])[0].latency_us == 30.0
    assert measurer.known(requests[0]) is None
    assert segments[0].seconds == pytest.approx(0.28)
    assert measurer.device == table.device
    measurer.close()


def test_layers_and_epsilon_do_not_matter_but_the_mask_does() -> None:
    measurer = ReplayMeasurer(toy_table())
    masked, dense = (Choice(run, "toy", (("p", 1),)) for run in (Run(3, 3), Run(7, 7)))
    assert measurer.measure([SegmentRequest(replace(WORKLOAD, layers=3, epsilon=1e-5), masked)])
    other = replace(WORKLOAD, mask="causal")
    assert measurer.measure([SegmentRequest(other, dense)])
    with pytest.raises(NotRecorded):
        measurer.measure([SegmentRequest(other, masked)])


def test_what_was_not_recorded_is_said_in_one_line() -> None:
    measurer = ReplayMeasurer(toy_table())
    scheme = best_recorded(toy_table(), WORKLOAD)[0]
    for request in (SegmentRequest(WORKLOAD, Choice(Run(0, 1), "toy")), ForwardRequest(WORKLOAD, scheme)):
        with pytest.raises(NotRecorded, match="--measurer cuda") as error:
            measurer.measure([request])
        assert "\n" not in str(error.value)
        assert "which holds" not in str(error.value)  # the workload is there
    with pytest.raises(NotRecorded, match="which holds"):
        measurer.measure([SegmentRequest(replace(WORKLOAD, seq_len=17), Choice(Run(7, 7), "toy", (("p", 1),)))])


def test_it_is_fast() -> None:
    table = toy_table()
    measurer = ReplayMeasurer(table)
    choices = [trial.choice for trial in table.trials if trial.choice is not None]
    start = time.process_time()
    for _ in range(50):
        for choice in choices:
            measurer.measure([SegmentRequest(WORKLOAD, choice)])
    assert (time.process_time() - start) / (50 * len(choices)) < 50e-6
