"""Which of two trials answers, and which choices are doubted; `test_recording.py` measures tables."""

from dataclasses import replace

from atoffer_rl.kernels.recorder import doubtful, replaces
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.trial import Status
from tests.stores import segment_trial


def test_what_answers_of_two_trials() -> None:
    few = segment_trial()
    many = replace(few, samples_us=few.samples_us * 2)
    failed = replace(few, status=Status.WRONG_RESULT, latency_us=None, samples_us=())
    passing = replace(failed, status=Status.LAUNCH_FAILED, detail={"transient": True})
    assert replaces(many, few)
    assert replaces(many, many)
    assert not replaces(few, many)
    assert replaces(failed, many)
    assert replaces(few, failed)
    assert not any(replaces(passing, earlier) for earlier in (few, many, failed))
    assert replaces(passing, passing)
    assert replaces(failed, passing)
    assert replaces(few, replace(many, detail={"anchors_disagreed": 1}))


def test_a_part_that_took_longer_than_the_whole_is_doubtful() -> None:
    part, whole, between = (Choice(Run(*run), "chain", (("vector", 4),)) for run in ((8, 8), (8, 9), (9, 9)))
    other = Choice(Run(8, 8), "chain", (("vector", 8),))
    assert doubtful({part: 14.0, whole: 10.0, between: 12.0, other: 90.0}) == [part]
    assert doubtful({part: 12.9, whole: 10.0}) == []
