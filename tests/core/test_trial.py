"""What is read back as a trial is one that a measurement can have left."""

import json
import math
from typing import Any

import pytest

from atoffer_rl.errors import StoreError
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.store import parse_trial
from atoffer_rl.trial import Status, Trial
from tests.stores import CHOICE, SCHEME, segment_trial

FORWARD = Trial("workload=x", None, SCHEME, "plain", Status.OK, latency_us=9.0)
WRONG: dict[str, list[Any]] = {
    "subject": [3, "", None, []],
    "choice": [None, 3, "x", {}, Choice(Run(5, 3), "x").to_json(), Choice(Run(0, 15), "x").to_json()],
    "scheme": [SCHEME.to_json(), 3, [], {}],
    "execution": ["fast", None, 3, []],
    "status": ["crashed", "fine", None, [], 3],
    "reason": [3, None],
    "latency_us": [0, 0.0, -1.0, True, "5", None, math.nan, math.inf, 1e308, 10**400, []],
    "samples_us": [3, "abc", ["5"], [True], [0], [math.nan], [1e308], [None], {"a": 1}],
    "max_error": ["x", True, -1.0, []],
    "error_budget": ["x", True, -1.0, []],
    "compile_seconds": ["1", None, True, -1, math.nan, math.inf, 1e308],
    "verify_seconds": ["1", None, True, -1, math.nan, math.inf, 1e308],
    "measure_seconds": ["1", None, True, -1, math.nan, math.inf, 1e308],
    "table": [3, None],
    "source_hash": [3, None],
    "machine": [3, None, {"device": 3}, {"cards": ""}, []],
    "detail": [3, None, []],
    "taken": [3, None],
    "protocol": ["1", True, None, 1.0],
    "unknown": [3],
}


MAY_BE_MISSING = {
    *("reason", "max_error", "error_budget", "compile_seconds", "verify_seconds", "measure_seconds"),
    *("table", "source_hash", "detail", "taken"),
}


@pytest.mark.parametrize("name", WRONG)
def test_fields_that_no_measurement_leaves(name: str) -> None:
    for value in WRONG[name]:
        with pytest.raises(StoreError) as error:
            parse_trial(json.dumps(segment_trial().to_json() | {name: value}))
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 300


@pytest.mark.parametrize("name", segment_trial().to_json())
def test_a_field_that_is_missing_has_its_default_or_is_told(name: str) -> None:
    """What a latency means depends on the protocol, which is never guessed."""
    value, asked = segment_trial().to_json(), segment_trial()
    del value[name]
    if name in MAY_BE_MISSING:
        bare = Trial(asked.subject, asked.choice, asked.scheme, asked.execution, asked.status)
        assert getattr(parse_trial(json.dumps(value)), name) == getattr(bare, name)
        return
    with pytest.raises(StoreError, match=r"a field is missing|cannot have the latency None"):
        parse_trial(json.dumps(value))


def test_trials_of_measurements_read_back() -> None:
    failed = Trial("s", CHOICE, None, "plain", Status.WRONG_RESULT, "off", max_error=math.inf, error_budget=1e-3)
    for trial in (segment_trial(), FORWARD, failed):
        assert parse_trial(json.dumps(trial.to_json())) == trial
