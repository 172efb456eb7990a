"""Training a policy to search, on recorded tables of other workloads, before it meets the one it is for.

First it imitates the teacher in states that it and the teacher visit together, then PPO improves it on whole
searches, whose reward is how much the best known scheme improves. Searches run on perturbed tables.

Reference: Ross, Gordon and Bagnell, A reduction of imitation learning to no-regret online learning, 2011 (DAgger).
"""

from collections.abc import Sequence
from math import log
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from atoffer_rl.agents.checkpoint import Checkpoint
from atoffer_rl.agents.hyperparameters import PretrainConfig
from atoffer_rl.agents.imitation import imitation_step
from atoffer_rl.agents.log import RunLog
from atoffer_rl.agents.option_policy import learner_keywords
from atoffer_rl.agents.oracle import oracle
from atoffer_rl.agents.rehearsal import Lesson
from atoffer_rl.agents.sb3_log import sb3_logger
from atoffer_rl.agents.teacher import teacher_action
from atoffer_rl.agents.threads import single_thread
from atoffer_rl.agents.training_tables import Spread, TrainingTable
from atoffer_rl.envs.fusion_scheme import FusionSchemeEnv
from atoffer_rl.envs.observation import OBSERVATION_SIZE, OPTION_COUNT, Vector
from atoffer_rl.envs.search_episode import OpenLedger, Search, SearchEpisode
from atoffer_rl.envs.space_hash import space_hash
from atoffer_rl.kernels.ledger import Ledger
from atoffer_rl.kernels.legal_space import LegalSpace

SPREAD = Spread()
"""How far tables that are trained on stray from what was recorded."""


def pretrain(tables: Sequence[TrainingTable], config: PretrainConfig, seed: int, log: RunLog) -> Checkpoint:
    """A policy trained on perturbations of `tables`; the same arguments give the same policy."""
    with single_thread():
        searches = perturbed_searches(tables, config.tables, np.random.default_rng(seed))
        model = _model(searches, config, seed)
        model.set_logger(sb3_logger(log))
        imitate(model, searches, config, np.random.default_rng(seed + 1), log)
        if config.timesteps:
            model.learn(config.timesteps)
    return Checkpoint(weights=model.policy.state_dict(), hidden=config.hidden, space=space_hash())


def perturbed_searches(tables: Sequence[TrainingTable], count: int, rng: np.random.Generator) -> list[Search]:
    """`count` searches on perturbations of `tables`, evenly shared out; the tables themselves come first."""
    searches = []
    for k in range(count):
        table = tables[k % len(tables)]
        spared = frozenset(LegalSpace(table.workload, table.device).unfused.choices)
        scale = 0.0 if k < len(tables) else 1.0
        perturbed = table.perturbed(rng, SPREAD, spared, scale)
        searches.append(Search(_opener(perturbed), oracle(perturbed.workload, perturbed)[1]))
    return searches


def imitate(
    model: MaskablePPO, searches: Sequence[Search], config: PretrainConfig, rng: np.random.Generator, log: RunLog
) -> None:
    """Teach the policy to do as the teacher does, in states that the two visit together."""
    optimizer = torch.optim.Adam(model.policy.parameters(), lr=config.imitation_rate)
    env = _search_episode(searches, config)
    env.reset(seed=int(rng.integers(2**31)))
    states = _States.blank(config.imitation_rounds * config.imitation_steps)
    for round_number in range(config.imitation_rounds):
        seen = (round_number + 1) * config.imitation_steps
        policy_share = round_number / config.imitation_rounds
        _visit(model, env, states.between(seen - config.imitation_steps, seen), policy_share, rng)
        loss = _fit(model, states.between(0, seen), config, optimizer, rng)
        log.scalar("pretrain/imitation_loss", loss, round_number)


class _States(NamedTuple):
    observations: NDArray[np.float32]
    actions: NDArray[np.int64]
    masks: NDArray[np.bool_]

    @classmethod
    def blank(cls, count: int) -> "_States":
        return cls(
            np.zeros((count, OBSERVATION_SIZE), np.float32),
            np.zeros(count, np.int64),
            np.zeros((count, OPTION_COUNT), bool),
        )

    def between(self, first: int, end: int) -> "_States":
        return _States(self.observations[first:end], self.actions[first:end], self.masks[first:end])


def _opener(table: TrainingTable) -> OpenLedger:
    return lambda units: Ledger(table.workload, table, units)


def _search_episode(searches: Sequence[Search], config: PretrainConfig) -> SearchEpisode:
    budgets = (config.smallest_budget, config.largest_budget)
    return SearchEpisode(FusionSchemeEnv(ledger=searches[0].open(config.smallest_budget)), searches, budgets)


class _LogImprovement(gymnasium.Wrapper[Vector, np.int64, Vector, np.int64]):
    """Pays the logarithm of an improvement, so that the last per cent counts as much as the first factors."""

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Take an option."""
        ledger: Ledger = self.env.get_wrapper_attr("ledger")
        before_us = ledger.graph.best_us
        observation, _, over, cut, info = self.env.step(action)
        reached_us = info.get("latency_us", ledger.unfused_us) if over else ledger.graph.best_us
        return observation, log(before_us / reached_us), over, cut, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions are legal."""
        masks: NDArray[np.bool_] = self.env.get_wrapper_attr("action_masks")()
        return masks


def _model(searches: Sequence[Search], config: PretrainConfig, seed: int) -> MaskablePPO:
    return MaskablePPO(
        env=DummyVecEnv([lambda: Monitor(_LogImprovement(_search_episode(searches, config)))] * config.n_envs),
        **learner_keywords(config, seed),
    )


def _visit(
    model: MaskablePPO, env: SearchEpisode, states: _States, policy_share: float, rng: np.random.Generator
) -> None:
    """Fill `states` on searches in which the policy takes `policy_share` of the steps, with the teacher's actions."""
    observation, _ = env.reset()
    for step in range(len(states.actions)):
        mask = env.action_masks()
        action = teacher_action(observation, mask)
        states.observations[step], states.actions[step], states.masks[step] = observation, action, mask
        if rng.uniform() < policy_share:
            action = int(model.predict(observation, action_masks=mask)[0])
        observation, _, over, _, _ = env.step(np.int64(action))
        if over:
            observation, _ = env.reset()


def _fit(
    model: MaskablePPO,
    states: _States,
    config: PretrainConfig,
    optimizer: torch.optim.Optimizer,
    rng: np.random.Generator,
) -> float:
    loss = 0.0
    for _ in range(config.imitation_epochs):
        order = rng.permutation(len(states.actions))
        for start in range(0, len(order), config.imitation_batch):
            batch = order[start : start + config.imitation_batch]
            lesson = Lesson(*(torch.as_tensor(part[batch]) for part in states))
            loss = imitation_step(model.policy, lesson, optimizer)
    return loss
