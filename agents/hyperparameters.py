"""Hyperparameters: documented dataclasses, their values in `config/*.yml` as RL Baselines3 Zoo keeps them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from atoffer_rl.agents.config_file import read_section
from atoffer_rl.errors import AtofferError
from atoffer_rl.quote import quote

CONFIG_FOLDER = Path(__file__).parent / "config"
PRETRAIN_FILE = CONFIG_FOLDER / "pretrain.yml"
SECTION = "atoffer/FusionScheme-v0"
LARGEST = 10**9
MAX_ENVS = 16
MAX_HIDDEN = 512
LEARNING_RATES = (1e-9, 0.1)
MAX_SEED = 2**32 - 1
MAX_ROLLOUT = 2**16
"""Steps that are kept for an update, of all environments together: each takes 12 kilobytes."""
MAX_MINIBATCH = 2**13
"""Steps that the network sees together: with the widest layers each takes a megabyte."""
ROLLOUT = ("n_envs", "n_steps", "batch_size")
"""What says together how many steps an update and its minibatches have."""
_BOUNDS = {
    "n_envs": (1, MAX_ENVS),
    "n_steps": (2, MAX_ROLLOUT),
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


@dataclass(frozen=True)
class LearningConfig:
    """Hyperparameters of MaskablePPO wherever it learns.

    Attributes:
        n_envs: Environments that are stepped together.
        n_steps: Steps of each environment between updates; with all environments at most `MAX_ROLLOUT`.
        batch_size: Steps in a minibatch, at most `MAX_MINIBATCH`; the last one may be smaller, but for a single step.
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
    given = {name: value for name, value in changes.items() if value is not None}
    values = read_section(path, SECTION) | given
    types = {field.name: field.type for field in fields(config)}

    def place(names: Iterable[str]) -> str:
        """The file where it alone says what `names` are."""
        return "" if given.keys() & set(names) else f"{path}: "

    if wrong := set(values) ^ set(types):
        raise AtofferError(f"{place(wrong)}{quote(', '.join(sorted(map(_named, wrong))), str)} unknown or missing")
    checked = {name: _checked(place([name]), name, value, types[name]) for name, value in values.items()}
    _check_rollout(place(ROLLOUT), **{name: checked[name] for name in ROLLOUT})
    return checked


def _check_rollout(place: str, n_envs: int, n_steps: int, batch_size: int) -> None:
    """Accept a rollout that fits into memory, and whose minibatches have advantages that can be normalised."""
    rollout = n_envs * n_steps
    total, minibatch = f"n_envs * n_steps is {rollout} steps", min(batch_size, rollout)
    if rollout > MAX_ROLLOUT:
        raise AtofferError(f"{place}{total}, over {MAX_ROLLOUT} take too much memory: reduce n_steps or n_envs")
    if minibatch > MAX_MINIBATCH:
        raise AtofferError(f"{place}minibatches of {minibatch} steps take too much memory: reduce batch_size")
    if rollout % minibatch == 1:
        lonely = f"of which the last minibatch of batch_size {batch_size} has one alone"
        raise AtofferError(f"{place}{total}, {lonely}: change n_steps or batch_size")


def _checked(place: str, name: str, value: Any, kind: Any) -> Any:
    whole = kind is int
    least, most = _BOUNDS.get(name, (0, LARGEST))
    right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not right or not least <= value <= most:
        expected = "a whole number" if whole else "a number"
        raise AtofferError(f"{place}{name} must be {expected} from {least} to {most}, not {_shown(value)}")
    return kind(value)


def _named(name: Any) -> str:
    return " ".join(name.split()) if isinstance(name, str) else quote(name)


def _shown(value: Any) -> str:
    """`value` for a message; what YAML's aliases repeat in a list within lists is not written out."""
    return f"a {type(value).__name__}" if isinstance(value, list | dict | set | tuple) else quote(value)
