"""Hyperparameters: documented dataclasses, their values in `config/*.yml` as RL Baselines3 Zoo keeps them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from atoffer_rl.errors import AtofferError

CONFIG_FOLDER = Path(__file__).parent / "config"
SECTION = "atoffer/FusionScheme-v0"


@dataclass(frozen=True)
class PPOConfig:
    """Hyperparameters of a PPO run.

    Attributes:
        n_envs: Environments, all on one budget. More than a few spend it before the first update.
        n_steps: Steps of each environment between updates; short, for the same reason.
        batch_size: Steps in a minibatch.
        n_epochs: Passes over a rollout; many are affordable, since measuring costs more than learning.
        learning_rate: Adam's.
        gae_lambda: Bias against variance of the advantage estimate.
        clip_range: PPO's clip.
        ent_coef: Weight of the entropy bonus.
        vf_coef: Weight of the value loss.
        max_grad_norm: Gradient norm's ceiling.
        imitation_coef: Weight of imitating the best path known so far (self-imitation); 0 turns it off.
        hidden: Width of the network's hidden layers; must be the starting policy's.
        timesteps: The run stops here if the budget was not spent or the policy has not settled before.
        settle_rollouts: The policy has settled when after so many updates in a row its rollout was as good as
            the recommendation.
    """

    n_envs: int
    n_steps: int
    batch_size: int
    n_epochs: int
    learning_rate: float
    gae_lambda: float
    clip_range: float
    ent_coef: float
    vf_coef: float
    max_grad_norm: float
    imitation_coef: float
    hidden: int
    timesteps: int
    settle_rollouts: int


def ppo_config(changes: Mapping[str, Any] | None = None, path: Path = CONFIG_FOLDER / "ppo.yml") -> PPOConfig:
    """The hyperparameters of `path`, `changes` taking precedence; a change to None changes nothing.

    Raises:
        AtofferError: If the file cannot be read, or a value is missing, unknown or of the wrong type.
    """
    try:
        values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))[SECTION]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise AtofferError(f"cannot read hyperparameters from {path}: it needs a section {SECTION}") from error
    values = values | {name: value for name, value in (changes or {}).items() if value is not None}
    types = {field.name: field.type for field in fields(PPOConfig)}
    if wrong := sorted(set(values) ^ set(types)):
        raise AtofferError(f"{path}: {', '.join(wrong)} unknown or missing")
    for name, value in values.items():
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or (types[name] is int and value != int(value))
        ):
            raise AtofferError(
                f"{path}: {name} must be a {'whole number' if types[name] is int else 'number'}, not {value!r}"
            )
    return PPOConfig(**{name: types[name](value) for name, value in values.items()})  # type: ignore[operator]
