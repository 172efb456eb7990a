"""Schemes built from measured choices alone: the policy's own rollout, and the best known path as a lesson."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy

from atoffer_rl.envs.decisions import Decision, DecisionTree, decision_tree
from atoffer_rl.envs.fusion_scheme import FusionSchemeEnv
from atoffer_rl.kernels.ledger import Ledger
from atoffer_rl.scheme import Choice, Scheme


class Lesson(NamedTuple):
    """What to do in each state along a scheme.

    Attributes:
        observations: (steps, fields).
        actions: (steps,).
        masks: (steps, options).
    """

    observations: torch.Tensor
    actions: torch.Tensor
    masks: torch.Tensor


class Rehearsal:
    """Builds schemes of a ledger's workload as if its budget were spent; nothing is measured.

    Args:
        ledger: What was measured.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._env = FusionSchemeEnv(ledger=ledger)
        self._tree = decision_tree(ledger.space)

    def rollout(self, policy: MaskableActorCriticPolicy) -> Scheme:
        """The scheme that `policy` builds of measured choices when it always takes its likeliest option."""
        with self._nothing_new():
            scheme = self.proposal(policy)
        assert scheme is not None  # Choices that failed are not offered.
        return scheme

    def proposal(self, policy: MaskableActorCriticPolicy) -> Scheme | None:
        """The same, of any choices that the budget allows; they are measured. None if one fails."""
        observation, _ = self._env.reset()
        while True:
            action, _ = policy.predict(observation, deterministic=True, action_masks=self._env.action_masks())
            observation, _, built, _, info = self._env.step(int(action))
            if built:
                return info.get("scheme")

    def lesson(self) -> Lesson:
        """The states along the best known scheme, and what to do there."""
        scheme, _ = self.ledger.best()
        observations, actions, masks = [], [], []
        with self._nothing_new():
            observation, _ = self._env.reset()
            for action in scheme_actions(self._tree, scheme):
                observations.append(observation)
                actions.append(action)
                masks.append(self._env.action_masks())
                observation, *_ = self._env.step(action)
        return Lesson(
            torch.as_tensor(np.array(observations)), torch.as_tensor(actions), torch.as_tensor(np.array(masks))
        )

    @contextmanager
    def _nothing_new(self) -> Iterator[None]:
        units, hits = self.ledger.units, self.ledger.cache_hits
        if not self.ledger.exhausted:
            self.ledger.units = self.ledger.units_spent
        try:
            yield
        finally:
            self.ledger.units, self.ledger.cache_hits = units, hits


def scheme_actions(tree: DecisionTree, scheme: Scheme) -> Iterator[int]:
    """The actions that build `scheme`."""
    for choice in scheme.choices:
        yield from choice_actions(tree, choice)


def choice_actions(tree: DecisionTree, choice: Choice) -> Iterator[int]:
    """The actions that choose `choice`."""
    number = tree.numbers[choice]
    at: Decision | int = tree.segments[choice.run.first]
    while isinstance(at, Decision):
        action = next(k for k, option in enumerate(at.options) if number in option.choices)
        yield action
        at = at.targets[action]
