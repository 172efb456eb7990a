import pytest
import torch

from atoffer_rl.agents import random_search
from atoffer_rl.agents.hyperparameters import ppo_config
from atoffer_rl.agents.imitation import imitation_step
from atoffer_rl.agents.ppo import PPOSearch
from atoffer_rl.agents.rehearsal import Rehearsal, scheme_actions
from atoffer_rl.agents.session import measured_us
from atoffer_rl.agents.teacher import teacher_action
from atoffer_rl.envs.decisions import decision_tree
from atoffer_rl.envs.fusion_scheme import FusionSchemeEnv
from atoffer_rl.kernels.ledger import Ledger
from atoffer_rl.kernels.legal_space import LegalSpace
from tests.agents.conftest import SMOKE, WORKLOAD


@pytest.fixture
def searched(session_of):
    session = session_of(units=60)
    random_search.search(session)
    return session


def test_actions_of_a_scheme_build_it(searched):
    scheme, latency_us = searched.ledger.best()
    env = FusionSchemeEnv(ledger=searched.ledger)
    env.reset()
    for action in scheme_actions(decision_tree(LegalSpace(WORKLOAD)), scheme):
        *_, info = env.step(action)
    assert info["scheme"] == scheme
    assert info["latency_us"] == pytest.approx(latency_us)


def test_the_lesson_is_what_a_rollout_should_do(searched):
    rehearsal = Rehearsal(searched.ledger)
    lesson = rehearsal.lesson()
    assert lesson.masks[torch.arange(len(lesson.actions)), lesson.actions].all()
    model = PPOSearch(ppo_config(SMOKE)).model(searched, rehearsal)
    before = measured_us(searched.ledger, rehearsal.rollout(model.policy))
    optimizer = torch.optim.Adam(model.policy.parameters(), lr=3e-3)
    losses = [imitation_step(model.policy, lesson, optimizer) for _ in range(150)]
    assert losses[-1] < losses[0]
    after = measured_us(searched.ledger, rehearsal.rollout(model.policy))
    assert after == pytest.approx(searched.ledger.graph.best_us)
    assert after <= before


def test_rehearsing_measures_nothing(session_of):
    session = session_of(units=50)
    rehearsal = Rehearsal(session.ledger)
    policy = PPOSearch(ppo_config(SMOKE)).model(session, rehearsal).policy
    known, hits = dict(session.ledger.trials), session.ledger.cache_hits
    assert rehearsal.rollout(policy) == session.ledger.space.unfused
    rehearsal.lesson()
    assert session.ledger.trials == known
    assert (session.ledger.units, session.ledger.units_spent, session.ledger.cache_hits) == (50, 0, hits)


def test_a_lesson_shows_what_the_environment_does_when_seconds_are_over(session_of):
    session = session_of(units=None)
    session.ledger.seconds = 3.0
    random_search.search(session)
    seen, _ = FusionSchemeEnv(ledger=session.ledger).reset()
    assert torch.equal(Rehearsal(session.ledger).lesson().observations[0], torch.as_tensor(seen))


def test_the_teacher_searches_then_settles(measurer, oracle_us):
    ledger = Ledger(WORKLOAD, measurer, 60)
    env = FusionSchemeEnv(ledger=ledger)
    observation, _ = env.reset()
    for _ in range(3000):
        action = teacher_action(observation, env.action_masks())
        assert env.action_masks()[action]
        observation, _, built, _, info = env.step(action)
        if built and ledger.spent:
            break
        if built:
            observation, _ = env.reset()
    assert ledger.spent
    observation, _ = env.reset()
    built = False
    while not built:
        observation, _, built, _, info = env.step(teacher_action(observation, env.action_masks()))
    assert info["latency_us"] == pytest.approx(ledger.graph.best_us)
    assert ledger.graph.best_us < 1.5 * oracle_us
