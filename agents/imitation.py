"""MaskablePPO that also imitates: the best path known so far in a run, a teacher in pre-training."""

from collections.abc import Callable

import torch
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy

from atoffer_rl.agents.rehearsal import Lesson

LARGEST_NORM = 0.5
"""Gradient norm's ceiling in a step of imitation."""


class ImitatingPPO(MaskablePPO):
    """MaskablePPO whose updates also imitate a lesson, where there is one.

    Attributes:
        lesson: Gives the states and actions to imitate, or None.
        imitation_coef: Weight of the imitation loss; 0 turns it off.
    """

    lesson: Callable[[], Lesson | None]
    imitation_coef: float

    def train(self) -> None:
        """Update the policy from the rollout, then from the lesson."""
        super().train()
        self.logger.record("policy/entropy", -float(self.logger.name_to_value["train/entropy_loss"]))
        lesson = self.lesson() if self.imitation_coef > 0 else None
        if lesson is not None:
            for _ in range(self.n_epochs):
                loss = imitation_step(self.policy, lesson, self.policy.optimizer, self.imitation_coef)
            self.logger.record("train/imitation_loss", loss)


def imitation_step(
    policy: MaskableActorCriticPolicy, lesson: Lesson, optimizer: torch.optim.Optimizer, weight: float = 1.0
) -> float:
    """One step of `optimizer` towards the lesson's actions.

    Returns:
        The mean surprise of the policy at them before the step, in nats.
    """
    _, log_prob, _ = policy.evaluate_actions(lesson.observations, lesson.actions, lesson.masks)
    loss = -log_prob.mean()
    optimizer.zero_grad()
    (weight * loss).backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), LARGEST_NORM)
    optimizer.step()
    return loss.item()
