"""The option policy against closed-form expectations on a toy problem."""

import signal
from importlib import import_module

import gymnasium as gym
import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO

from atoffer_rl.agents.option_policy import OptionNetwork, OptionPolicy, WholeStepAdam

GLOBALS, OPTIONS, FIELDS = 3, 8, 4


class Bandit(gym.Env):
    """One step an episode; the reward is an option's second field, and a legal option's third field is 1.

    The optimum is in closed form: the legal option with the largest second field.
    """

    def __init__(self) -> None:
        size = GLOBALS + OPTIONS * FIELDS
        self.observation_space = gym.spaces.Box(-1, 1, (size,), np.float32)
        self.action_space = gym.spaces.Discrete(OPTIONS)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.rows = self.np_random.uniform(-1, 1, (OPTIONS, FIELDS)).astype(np.float32)
        self.rows[:, 2] = self.np_random.permutation(OPTIONS) < 4
        return self._observation(), {}

    def action_masks(self):
        return self.rows[:, 2] == 1

    def best(self):
        return int(np.where(self.action_masks(), self.rows[:, 1], -np.inf).argmax())

    def step(self, action):
        assert self.action_masks()[action], "an illegal option was taken"
        return self._observation(), float(self.rows[action, 1]), True, False, {}

    def _observation(self):
        return np.concatenate([np.zeros(GLOBALS, np.float32), self.rows.ravel()])


@pytest.fixture
def network():
    torch.manual_seed(0)
    return OptionNetwork(GLOBALS, OPTIONS, FIELDS, hidden=16)


def observations(count, seed=0):
    return torch.as_tensor(
        np.random.default_rng(seed).normal(size=(count, GLOBALS + OPTIONS * FIELDS)), dtype=torch.float32
    )


def permuted(observation, order):
    rows = observation[:, GLOBALS:].unflatten(1, (OPTIONS, FIELDS))[:, order]
    return torch.cat([observation[:, :GLOBALS], rows.flatten(1)], dim=1)


def test_permuting_options_permutes_scores_and_keeps_the_value(network):
    order = torch.randperm(OPTIONS, generator=torch.Generator().manual_seed(1))
    scores, value = network(observations(5))
    permuted_scores, permuted_value = network(permuted(observations(5), order))
    torch.testing.assert_close(permuted_scores, scores[:, order])
    torch.testing.assert_close(permuted_value, value)


def test_absent_options_change_nothing(network):
    observation = observations(1)
    observation[:, GLOBALS + 3 * FIELDS :] = 0
    wide = OptionNetwork(GLOBALS, 2 * OPTIONS, FIELDS, hidden=16)
    wide.load_state_dict(network.state_dict())
    longer = torch.cat([observation, torch.zeros(1, OPTIONS * FIELDS)], dim=1)
    scores, value = network(observation)
    wide_scores, wide_value = wide(longer)
    torch.testing.assert_close(wide_scores[:, :3], scores[:, :3])
    torch.testing.assert_close(wide_value, value)


def test_actor_and_critic_agree_with_both(network):
    scores, value = network(observations(4))
    torch.testing.assert_close(network.forward_actor(observations(4)), scores)
    torch.testing.assert_close(network.forward_critic(observations(4)), value)


def make(**changes):
    arguments = {"n_steps": 64, "batch_size": 64, "n_epochs": 8, "learning_rate": 3e-3, "gamma": 1.0, "seed": 0}
    return MaskablePPO(
        OptionPolicy,
        Bandit(),
        policy_kwargs={"global_fields": GLOBALS, "hidden": 32},
        device="cpu",
        **arguments | changes,
    )


def test_masked_options_have_no_probability():
    model = make()
    mask = np.zeros((1, OPTIONS), dtype=bool)
    mask[0, [2, 5]] = True
    probabilities = model.policy.get_distribution(observations(1), mask).distribution.probs[0]
    assert probabilities[~torch.as_tensor(mask[0])].max().item() < 1e-6
    assert probabilities.sum().item() == pytest.approx(1.0)


def test_ppo_learns_the_closed_form_optimum():
    model = make()
    model.learn(3000)
    env, right = Bandit(), 0
    for seed in range(100):
        observation, _ = env.reset(seed=1000 + seed)
        action, _ = model.predict(observation, deterministic=True, action_masks=env.action_masks())
        right += int(action) == env.best()
    assert right >= 80


def test_same_seed_same_weights():
    one, other = make(seed=3).learn(128), make(seed=3).learn(128)
    for name, value in one.policy.state_dict().items():
        torch.testing.assert_close(value, other.policy.state_dict()[name], rtol=0, atol=0)


def test_ctrl_c_does_not_cut_a_step_in_two(monkeypatch):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = WholeStepAdam([weight])
    weight.grad = torch.ones(3)
    functions = import_module("torch.optim.adam")
    whole = functions.adam

    def interrupted(*words, **options):
        signal.raise_signal(signal.SIGINT)
        whole(*words, **options)

    monkeypatch.setattr(functions, "adam", interrupted)
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
    finally:
        signal.signal(signal.SIGINT, earlier)
    assert (optimizer.state[weight]["exp_avg_sq"] > 0).all()
