"""What the optimizer and the random state in a checkpoint must be: what a run of ours writes, and nothing else."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from atoffer_rl.agents.hyperparameters import LEARNING_RATES
from atoffer_rl.agents.option_policy import OptionPolicy
from atoffer_rl.envs.observation import GLOBAL_SIZE, OBSERVATION_HIGH, OBSERVATION_LOW, OPTION_COUNT

MOMENTS = ("exp_avg", "exp_avg_sq")
MOST_STEPS = 2**32
NEEDED_SETTINGS = ("lr", "betas", "eps", "weight_decay", "amsgrad", "params")
"""Adam's; others that a version of torch does not know yet may be absent."""
LARGEST_RATIO, ROUNDING = 10.0, 1e-18
"""Of Adam's first moment over the root of its second, which is at most 7.3 whatever the gradients were."""


def check_training_state(
    weights: Mapping[str, Tensor], hidden: int, optimizer: Mapping[str, Any], random_state: Any
) -> None:
    """Accept what a run of a policy with `hidden` units wrote.

    Raises:
        ValueError: If a name, shape, format or value is one that no run writes.
        LookupError, TypeError, AttributeError, RuntimeError: If a part is of another kind.
    """
    blank = _blank_policy(hidden)
    own = blank.state_dict()
    _need(list(weights) == list(own), "the network's names")
    for name, weight in weights.items():
        _need(weight.shape == own[name].shape and weight.dtype == own[name].dtype, f"the shape of {name}")
    _check_settings(optimizer["param_groups"], blank.optimizer.state_dict()["param_groups"][0])
    parameters = list(blank.parameters())
    for number, moments in optimizer["state"].items():
        _need(type(number) is int and 0 <= number < len(parameters), "the optimizer's parameters")
        _check_moments(moments, parameters[number])
    torch.Generator().set_state(random_state)


def _need(right: bool, what: str) -> None:
    if not right:
        raise ValueError(f"{what} is none that a run writes")


def _blank_policy(hidden: int) -> OptionPolicy:
    with torch.random.fork_rng(devices=[]):
        return OptionPolicy(
            spaces.Box(OBSERVATION_LOW, OBSERVATION_HIGH, dtype=np.float32),
            spaces.Discrete(OPTION_COUNT),
            lambda _: LEARNING_RATES[0],
            global_fields=GLOBAL_SIZE,
            hidden=hidden,
        )


def _check_settings(groups: list[dict[str, Any]], own: Mapping[str, Any]) -> None:
    (group,) = groups
    _need(set(NEEDED_SETTINGS) <= set(group) <= set(own), "the optimizer's settings")
    rate = group["lr"]
    _need(type(rate) is float and LEARNING_RATES[0] <= rate <= LEARNING_RATES[1], "the learning rate")
    for name in set(group) - {"lr"}:
        right = tuple(group[name]) == own[name] if name == "betas" else group[name] == own[name]
        _need(right, f"the optimizer's {name}")


def _check_moments(moments: Mapping[str, Tensor], parameter: Tensor) -> None:
    _need(set(moments) == {"step", *MOMENTS}, "the optimizer's state")
    step, mean, square = (moments[name] for name in ("step", *MOMENTS))
    _need(step.shape == () and step.dtype == torch.float32, "a step")
    steps = step.item()
    _need(1 <= steps < MOST_STEPS and steps == int(steps), "a step")
    for moment in (mean, square):
        _need(moment.shape == parameter.shape and moment.dtype == parameter.dtype, "the shape of a moment")
    _need(bool(square.isfinite().all() and (square >= 0).all()), "a second moment")
    _need(bool((mean.abs() <= LARGEST_RATIO * square.sqrt() + ROUNDING).all()), "a first moment")
