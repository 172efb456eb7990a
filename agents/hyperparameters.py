"""Hyperparameters: documented dataclasses, their values in `config/*.yml` as RL Baselines3 Zoo keeps them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from atoffer_rl.errors import AtofferError

CONFIG_FOLDER = Path(__file__).parent / "config"
PRETRAIN_FILE = CONFIG_FOLDER / "pretrain.yml"
SECTION = "atoffer/FusionScheme-v0"
LARGEST = 10**9
MAX_ENVS = 16
MAX_HIDDEN = 512
LEARNING_RATES = (1e-9, 0.1)
MAX_SEED = 2**32 - 1
_BOUNDS = {
    "n_envs": (1, MAX_ENVS),
    "n_steps": (2, 10**6),
    "batch_size": (2, 10**6),
    "n_epochs": (1, 10**4),
    "hidden": (1, MAX_HIDDEN),
    "learning_rate": LEARNING_RATES,
    "gae_lambda": (0.0, 1.0),
    "clip_range": (1e-6, 1.0),
    "max_grad_norm": (1e-9, LARGEST),
    "settle_rollouts": (1, LARGEST),
}
"""Least and largest value of hyperparameters that cannot be anything from 0 to `LARGEST`."""


_OF_YAML = (yaml.YAMLError, RecursionError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""Its own errors, and what its constructors raise besides."""


@dataclass(frozen=True)
class LearningConfig:
    """Hyperparameters of MaskablePPO wherever it learns.

    Attributes:
        n_envs: Environments that are stepped together.
        n_steps: Steps of each environment between updates.
        batch_size: Steps in a minibatch.
        n_epochs: Passes over a rollout.
        learning_rate: Adam's.
        gae_lambda: Bias against variance of the advantage estimate.
        clip_range: PPO's clip.
        ent_coef: Weight of the entropy bonus.
        hidden: Width of the network's hidden layers.
    """

    n_envs: int
    n_steps: int
    batch_size: int
    n_epochs: int
    learning_rate: float
    gae_lambda: float
    clip_range: float
    ent_coef: float
    hidden: int


@dataclass(frozen=True)
class PPOConfig(LearningConfig):
    """Hyperparameters of a PPO run.

    All environments are on one budget: more than a few, or long rollouts, spend it before the first update. Many
    epochs are affordable, since measuring costs more than learning. `hidden` must be the starting policy's.

    Attributes:
        vf_coef: Weight of the value loss.
        max_grad_norm: Gradient norm's ceiling.
        imitation_coef: Weight of imitating the best path known so far (self-imitation); 0 turns it off.
        timesteps: The run stops here if the budget was not spent or the policy has not settled before.
        settle_rollouts: The policy has settled when after so many updates in a row its rollout was as good as
            the recommendation.
    """

    vf_coef: float
    max_grad_norm: float
    imitation_coef: float
    timesteps: int
    settle_rollouts: int


@dataclass(frozen=True)
class PretrainConfig(LearningConfig):
    """Hyperparameters of pre-training; each environment has its own searches.

    Attributes:
        tables: Perturbed tables to train on.
        imitation_rounds: Rounds of collecting states and imitating the teacher in them.
        imitation_steps: States collected in a round.
        imitation_epochs: Passes over all states collected so far, each round.
        imitation_batch: States in a minibatch of imitation.
        imitation_rate: Adam's learning rate while imitating.
        timesteps: Steps of PPO on whole searches that follow.
        smallest_budget: Least units of a search.
        largest_budget: Most units of a search.
    """

    tables: int
    imitation_rounds: int
    imitation_steps: int
    imitation_epochs: int
    imitation_batch: int
    imitation_rate: float
    timesteps: int
    smallest_budget: int
    largest_budget: int


def ppo_config(changes: Mapping[str, Any] | None = None, path: Path = CONFIG_FOLDER / "ppo.yml") -> PPOConfig:
    """The hyperparameters of a run; `changes` that are not None take precedence.

    Raises:
        AtofferError: If the file cannot be read, or a value is missing, unknown or of the wrong type.
    """
    return PPOConfig(**_values(PPOConfig, path, changes or {}))


def pretrain_config(changes: Mapping[str, Any] | None = None) -> PretrainConfig:
    """The hyperparameters of pre-training; `changes` that are not None take precedence.

    Raises:
        AtofferError: If the file cannot be read, or a value is missing, unknown or of the wrong type.
    """
    return PretrainConfig(**_values(PretrainConfig, PRETRAIN_FILE, changes or {}))


def _values(config: type, path: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise AtofferError(f"there is no file of hyperparameters {path}: give the path of a YAML file") from error
    except OSError as error:
        raise AtofferError(f"cannot read hyperparameters {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise AtofferError(f"cannot read hyperparameters {str(path)!r}: it names or holds no text") from error
    values = _section(path, text) | {name: value for name, value in changes.items() if value is not None}
    types = {field.name: field.type for field in fields(config)}
    if wrong := sorted(map(str, set(values) ^ set(types))):
        raise AtofferError(f"{path}: {', '.join(wrong)} unknown or missing")
    return {name: _checked(path, name, value, types[name]) for name, value in values.items()}


def _section(path: Path, text: str) -> dict[str, Any]:
    """The section of the YAML `text` that holds hyperparameters."""
    try:
        sections = yaml.safe_load(text)
    except _OF_YAML as error:
        raise AtofferError(f"cannot read hyperparameters from {path}: it is not valid YAML{_fault(error)}") from error
    if not isinstance(sections, dict) or SECTION not in sections:
        raise AtofferError(f"cannot read hyperparameters from {path}: it needs a section {SECTION}")
    values = sections[SECTION]
    if not isinstance(values, dict):
        raise AtofferError(f"{path}: section {SECTION} must map names to values")
    return values


def _fault(error: Exception) -> str:
    """Where YAML is wrong, and how, as far as `error` tells."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f", line {error.problem_mark.line + 1}: {error.problem}"
    return f": {' '.join(str(error).split())}"


def _checked(path: Path, name: str, value: Any, kind: Any) -> Any:
    whole = kind is int
    least, most = _BOUNDS.get(name, (0, LARGEST))
    right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not right or not least <= value <= most:
        expected = "a whole number" if whole else "a number"
        raise AtofferError(f"{path}: {name} must be {expected} from {least} to {most}, not {value!r}")
    return kind(value)
