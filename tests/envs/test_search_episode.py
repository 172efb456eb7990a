from functools import partial

import gymnasium
import numpy as np
import pytest

from atoffer_rl.envs.fusion_scheme import FAILURE_RETURN, FusionSchemeEnv
from atoffer_rl.envs.observation import named
from atoffer_rl.envs.search_episode import Search, SearchEpisode
from atoffer_rl.kernels.ledger import Ledger
from tests.envs.conftest import OTHER, WORKLOAD
from tests.envs.walks import random_pick, walk

ORACLE_US = 77.0


@pytest.fixture
def searches(measurer):
    return [Search(partial(Ledger, workload, measurer), ORACLE_US) for workload in (WORKLOAD, OTHER)]


@pytest.fixture
def env(searches):
    return SearchEpisode(gymnasium.make("atoffer/FusionScheme-v0", ledger=searches[0].open(0)), searches, (2, 24))


def test_the_return_is_what_the_search_gained_by_the_scheme_it_settled_on(env):
    for seed in range(6):
        episode = walk(env, random_pick(seed), seed=seed)
        ledger, settled_us = env.ledger, episode.infos[-1]["latency_us"]
        gained = (ledger.unfused_us - min(settled_us, ledger.unfused_us)) / ORACLE_US
        assert sum(episode.rewards) == pytest.approx(gained, abs=1e-9)
        assert ledger.reserved == 0
        assert all(env.observation_space.contains(item) for item in episode.observations)


def test_each_is_paid_for_what_it_won_itself(searches):
    ledger, source = searches[0].open(40), np.random.default_rng(0)
    envs = [
        SearchEpisode(FusionSchemeEnv(ledger=ledger), [Search(lambda _: ledger, ORACLE_US)], (40, 40), settle=False)
        for _ in range(3)
    ]
    for env in envs:
        env.reset(seed=0)
    paid = 0.0
    while envs:
        env = envs.pop(0)
        _, reward, over, *_ = env.step(source.choice(env.action_masks().nonzero()[0]))
        paid += reward
        envs += [] if over else [env]
    assert paid == pytest.approx((ledger.unfused_us - ledger.graph.best_us) / ORACLE_US)


def test_the_budget_is_spent_and_then_nothing_new_is_measured(env):
    episode = walk(env, random_pick(), seed=1, options={"units": 12})
    assert env.ledger.units_spent == 12
    built = [place for place, info in enumerate(episode.infos) if "recommended_us" in info]
    after = [named(item)[0]["units_left"] for item in episode.observations[built[-2] + 1 :]]
    assert set(after) == {0.0}


def test_without_settling_it_ends_with_the_budget(searches):
    env = SearchEpisode(
        gymnasium.make("atoffer/FusionScheme-v0", ledger=searches[0].open(0)), searches, (5, 5), settle=False
    )
    episode = walk(env, random_pick(), seed=0)
    assert env.ledger.units_spent == 5
    best_us = env.ledger.graph.best_us
    assert sum(episode.rewards) == pytest.approx((env.ledger.unfused_us - best_us) / ORACLE_US)


@pytest.fixture
def known_only(env):
    """Picks what is known wherever it may."""

    def pick(legal):
        options = named(env.unwrapped._observe())[1]
        return next((action for action in legal if options[action]["known"]), legal[0])

    return pick


@pytest.mark.parametrize("units", [3, 12])
def test_a_policy_that_stays_with_what_it_knows_is_made_to_spend_its_budget(env, known_only, units):
    episode = walk(env, known_only, options={"units": units})
    assert env.ledger.units == env.ledger.units_spent == units
    assert sum("recommended_us" in info for info in episode.infos) <= units + 4 + 1
    firsts = {choice.run.first for choice in list(env.ledger.trials)[-units:]}
    assert len(firsts) > min(units, 6) // 2  # not all at the layer's beginning


@pytest.fixture(params=[range(3), range(13, 15), (6,)], ids=["the first", "the last", "one of them"])
def nearly_known(request, searches):
    """A search in which only choices that begin at a few operators are left to measure, and how many."""
    space = searches[0].open(0).space
    left = [choice for choice in space.all_choices if choice.run.first in request.param]
    left = [choice for choice in left if choice not in space.unfused.choices][-24:]
    known = [choice for choice in space.all_choices if choice not in (*left, *space.unfused.choices)]

    def opened(units):
        ledger = searches[0].open(units + len(known))
        ledger.restore(known)
        return ledger

    return Search(opened, ORACLE_US), len(left)


def test_a_budget_for_all_there_is_measures_all_there_is(env, known_only, nearly_known):
    search, left = nearly_known
    episode = walk(env, known_only, options={"search": search, "units": left})
    assert env.ledger.units == env.ledger.units_spent
    assert len(env.ledger.trials) == len(env.ledger.space.all_choices)
    assert sum("recommended_us" in info for info in episode.infos) <= left + 4 + 1


def test_an_option_leads_to_what_its_segment_or_a_later_one_may_measure(nearly_known):
    search, left = nearly_known
    ledger = search.open(left)
    env = FusionSchemeEnv(ledger=ledger)
    env.reset()
    tree = env._view.tree
    unmeasured = [number for number, choice in enumerate(tree.choices) if choice not in ledger.trials]
    last = max(tree.choices[number].run.first for number in unmeasured)
    for decision in tree.decisions:
        env._face(decision)
        expected = [
            not set(option.choices).isdisjoint(unmeasured) or option.run.last < last for option in decision.options
        ]
        legal = env.action_masks()[: len(expected)]
        assert env.leading_masks()[: len(expected)].tolist() == (legal & expected).tolist()


def test_a_budget_for_more_than_there_is_forfeits_the_rest(env, known_only, nearly_known):
    search, left = nearly_known
    walk(env, known_only, options={"search": search, "units": left + 5})
    assert env.ledger.units_left == 0
    assert len(env.ledger.trials) == len(env.ledger.space.all_choices)


def test_without_a_limit_on_units_nothing_is_due(measurer):
    timed = Search(lambda _: Ledger(WORKLOAD, measurer, seconds=1e9), ORACLE_US)
    env = SearchEpisode(FusionSchemeEnv(ledger=timed.open(0)), [timed], (1, 1))
    env.reset(seed=0)
    for _ in range(60):
        legal = env.unwrapped.action_masks()
        assert np.array_equal(env.action_masks(), legal)
        known = env.unwrapped._view._known[env.unwrapped._decision.rows]
        env.step(np.int64((legal[: len(known)] & known).argmax()))


def test_without_a_budget_it_settles_at_once(env):
    episode = walk(env, random_pick(), options={"units": 0})
    assert sum(episode.rewards) == 0.0
    assert episode.infos[-1]["scheme"] == env.ledger.space.unfused


def test_draws_depend_on_the_seed_alone(env):
    def drawn(seed):
        env.reset(seed=seed)
        return [(env.ledger.workload, env.ledger.units, env.reset()) and env.ledger.units for _ in range(6)]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    assert all(2 <= units <= 24 for units in drawn(5))


def test_an_illegal_action_ends_the_search(env):
    env.reset(seed=0)
    illegal = int(np.flatnonzero(~env.action_masks())[-1])
    _, reward, over, _, _ = env.step(illegal)
    assert (reward, over) == (FAILURE_RETURN, True)


def test_without_an_oracle_improvements_are_relative(searches):
    unknown = [search._replace(oracle_us=None) for search in searches]
    env = SearchEpisode(gymnasium.make("atoffer/FusionScheme-v0", ledger=searches[0].open(0)), unknown, (4, 4))
    episode = walk(env, random_pick(), seed=0)
    assert all(np.isfinite(episode.rewards))
    assert max(episode.rewards) <= 1.0
