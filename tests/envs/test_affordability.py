"""Whatever is legal can be completed and paid for, at every budget and with any number of environments."""

import gymnasium
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoffer_rl.envs.fusion_scheme import FusionSchemeEnv
from atoffer_rl.kernels.ledger import Ledger
from atoffer_rl.kernels.measurers.replay import ReplayMeasurer
from atoffer_rl.trial import SegmentRequest
from tests.envs.walks import random_pick, walk
from tests.large_scores import LARGE_SCORES
from tests.synthetic import synthetic_table

PATIENT = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@PATIENT
@given(units=st.integers(0, 40), seed=st.integers(0, 2**32 - 1))
def test_a_legal_walk_is_always_affordable(open_ledger, units, seed):
    ledger = open_ledger(units=units)
    env = FusionSchemeEnv(ledger=ledger)
    pick = random_pick(seed)
    for _ in range(units + 3):
        failures = sum(not trial.ok for trial in ledger.trials.values())
        episode = walk(env, pick)
        assert all(mask.any() for mask in episode.masks)
        assert not any(info.get("illegal") for info in episode.infos)
        failed = "scheme" not in episode.infos[-1]
        assert sum(not trial.ok for trial in ledger.trials.values()) == failures + failed
        assert ledger.units_spent <= units
        assert ledger.reserved == 0
    assert "scheme" in episode.infos[-1] or not ledger.spent


@PATIENT
@given(units=st.integers(0, 30), seed=st.integers(0, 2**32 - 1), count=st.integers(2, 5))
def test_environments_that_share_a_ledger_never_overspend(open_ledger, units, seed, count):
    ledger = open_ledger(units=units)
    envs = [FusionSchemeEnv(ledger=ledger) for _ in range(count)]
    source = np.random.default_rng(seed)
    for env in envs:
        env.reset()
    for _ in range(60):
        masks = [env.action_masks() for env in envs]
        for env, mask in zip(envs, masks, strict=True):
            assert mask.any()
            _, _, over, _, info = env.step(source.choice(np.flatnonzero(mask)))
            assert not info.get("illegal")
            assert ledger.units_spent + ledger.reserved <= units
            if over:
                env.reset()
    for env in envs:
        env.close()
    assert ledger.reserved == 0


def test_when_seconds_run_out_what_was_reserved_is_still_measured(open_ledger):
    ledger = open_ledger(seconds=1e-6)
    envs = [FusionSchemeEnv(ledger=ledger) for _ in range(2)]
    for env in envs:
        env.reset()
    for env, seed in zip(envs, (1, 2), strict=True):
        pick, spent = random_pick(seed), ledger.units_spent
        while ledger.units_spent == spent:
            env.step(pick(np.flatnonzero(env.action_masks())))
    assert ledger.spent
    assert ledger.units_spent == 2


def test_only_measured_choices_are_offered_when_the_budget_is_spent(open_ledger):
    ledger = open_ledger(units=0)
    episode = walk(FusionSchemeEnv(ledger=ledger), random_pick())
    assert episode.infos[-1]["scheme"] == ledger.space.unfused
    assert sum(episode.rewards) == -1.0
    assert ledger.units_spent == 0


def test_a_failed_choice_is_not_offered_again(open_ledger):
    ledger = open_ledger()
    env = FusionSchemeEnv(ledger=ledger)
    pick, failed = random_pick(), []
    for _ in range(150):
        last = walk(env, pick).infos[-1]
        if "scheme" not in last:
            failed.append(last["choice"])
    assert len(failed) > 5
    assert len(set(failed)) == len(failed)


@pytest.mark.parametrize("units", [0, 1, 12])
def test_the_mask_allows_exactly_what_some_affordable_completion_follows(open_ledger, units):
    ledger = open_ledger(units=units)
    env = FusionSchemeEnv(ledger=ledger)
    pick = random_pick(units)
    for _ in range(20):
        env.reset()
        over = False
        while not over:
            decision, choices = env._decision, env._view.tree.choices
            affordable = env._reserved
            expected = [
                any(
                    ledger.trials[choices[number]].ok if choices[number] in ledger.trials else affordable
                    for number in option.choices
                )
                for option in decision.options
            ]
            mask = env.action_masks()
            assert mask[: len(expected)].tolist() == expected
            assert not mask[len(expected) :].any()
            _, _, over, _, _ = env.step(pick(np.flatnonzero(mask)))


def test_an_offer_that_others_exhausted_meanwhile_fails_without_an_illegal_mask(open_ledger):
    """One environment is inside a segment while all of its choices turn out to fail."""
    ledger = open_ledger()
    env = FusionSchemeEnv(ledger=ledger)
    env.reset()
    tree = env._view.tree
    failing = [number for number, choice in enumerate(tree.choices) if _fails(ledger, choice)]
    row = next(
        row
        for decision in tree.decisions
        for row in range(decision.rows.start, decision.rows.stop)
        if decision.open and all(number in failing for number in tree.options[row].choices)
    )
    decision = next(item for item in tree.decisions if item.rows.start <= row < item.rows.stop)
    env._face(decision)
    ledger.measure_all(tree.choices[number] for number in tree.options[row].choices)
    _, _, over, _, info = env.step(row - decision.row)
    while not over:
        assert env.action_masks().any()
        _, _, over, _, info = env.step(np.flatnonzero(env.action_masks())[0])
    assert info["status"] == "wrong_result"
    assert ledger.reserved == 0


def _fails(ledger, choice):
    return not ledger.measurer.measure([SegmentRequest(ledger.workload, choice)])[0].ok


def test_making_the_environment_reserves_nothing(open_ledger):
    ledger = open_ledger(units=4)
    env = gymnasium.make("atoffer/FusionScheme-v0", ledger=ledger)
    assert ledger.reserved == 0
    assert env.unwrapped.action_masks().any()


@pytest.mark.parametrize("units", [0, 5, None])
def test_a_layer_whose_scores_cannot_be_stored_is_searched_like_any_other(units):
    ledger = Ledger(LARGE_SCORES, ReplayMeasurer(synthetic_table(LARGE_SCORES)), units)
    env, pick = FusionSchemeEnv(ledger=ledger), random_pick()
    for _ in range(10):
        episode = walk(env, pick)
        assert all(mask.any() for mask in episode.masks)
        assert all(np.isfinite(observation).all() for observation in episode.observations)
    assert ledger.best()[1] <= ledger.unfused_us


def test_nothing_unmeasured_is_offered_without_a_unit(open_ledger):
    ledger = open_ledger(1)
    first, second = FusionSchemeEnv(ledger=ledger), FusionSchemeEnv(ledger=ledger)
    first.reset()
    second.reset()
    assert first.unmeasured_masks().any()
    assert not second.unmeasured_masks().any()
