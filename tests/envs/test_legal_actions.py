import gymnasium
import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env

from atoffer_rl.envs.legal_actions import LegalActions
from atoffer_rl.envs.observation import named


@pytest.fixture
def env(open_ledger):
    return LegalActions(gymnasium.make("atoffer/FusionScheme-v0", ledger=open_ledger(units=20)))


def test_no_action_is_illegal(env):
    source = np.random.default_rng(0)
    env.reset()
    for _ in range(500):
        _, _, over, _, info = env.step(source.integers(64))
        assert not info.get("illegal")
        if over:
            env.reset()


def test_rows_describe_the_legal_options_in_order(env):
    observation, _ = env.reset()
    while True:
        legal = int(env.action_masks().sum())
        present = named(observation)[1]
        assert len(present) == legal
        assert all(option["legal"] for option in present)
        observation, _, over, _, _ = env.step(legal - 1)
        if over:
            break


def test_actions_past_the_last_legal_one_count_again_from_the_first(env):
    env.reset()
    legal = int(env.action_masks().sum())
    _, _, _, _, first = env.step(0)
    env.reset()
    _, _, _, _, again = env.step(legal)
    assert first["action"] == again["action"]


def test_stable_baselines3s_checker_accepts_it(env):
    check_env(env)


def test_an_algorithm_without_masks_trains_on_it(env):
    PPO("MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=1, device="cpu").learn(64)
    assert env.unwrapped.ledger.units_spent > 0
