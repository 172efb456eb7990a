"""A masked actor-critic policy that scores every option with shared weights.

An observation is a vector of global fields followed by one row of fields for each option of the present
decision. One network scores each option from its own row, the global fields and what all options have in
common, so that what it learns carries over between decisions, workloads and templates.

Reference: Zaheer et al., Deep Sets, 2017, section 3 (permutation equivariant layers).
"""

from typing import Any

import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import MaskableDistribution
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor, nn

from atoffer_rl.agents.hyperparameters import LearningConfig
from atoffer_rl.agents.uninterrupted import uninterrupted
from atoffer_rl.envs.observation import GLOBAL_SIZE

SCORE_GAIN = 0.01
LARGEST_SCORE = 1e6
"""Far below what illegal options are set to, so that whatever the weights are none of those is likelier."""


class OptionNetwork(nn.Module):
    """Scores for all options, and a latent vector for the value, from one observation.

    Each option's first layer reads its own fields and the global ones; its second also reads the mean and the
    maximum of the first over the options that are present (a row of zeros is an absent option). Permuting the
    options permutes the scores and leaves the value latent as it is.

    Args:
        global_fields: Number of global fields.
        options: Number of option rows.
        option_fields: Number of fields in a row.
        hidden: Width of the hidden layers.
    """

    def __init__(self, global_fields: int, options: int, option_fields: int, hidden: int) -> None:
        super().__init__()
        self.global_fields, self.options, self.option_fields = global_fields, options, option_fields
        self.latent_dim_pi, self.latent_dim_vf = options, hidden
        self.read_global = nn.Linear(global_fields, hidden)
        self.read_option = nn.Linear(option_fields, hidden, bias=False)
        self.mix_option = nn.Linear(hidden, hidden)
        self.mix_pooled = nn.Linear(2 * hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1)
        self.value = nn.Sequential(nn.Linear(3 * hidden, hidden), nn.ReLU())

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (batch, options) and value latent (batch, hidden) of observations (batch, fields)."""
        of_layer, of_options, pooled = self._embed(observation)
        return self._scores(of_options, pooled), self.value(torch.cat([of_layer, pooled], dim=1))

    def forward_actor(self, observation: Tensor) -> Tensor:
        """Scores alone."""
        _, of_options, pooled = self._embed(observation)
        return self._scores(of_options, pooled)

    def forward_critic(self, observation: Tensor) -> Tensor:
        """Value latent alone."""
        of_layer, _, pooled = self._embed(observation)
        latent: Tensor = self.value(torch.cat([of_layer, pooled], dim=1))
        return latent

    def _embed(self, observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = observation[:, self.global_fields :].unflatten(1, (self.options, self.option_fields))
        of_layer = self.read_global(observation[:, : self.global_fields])
        present = (rows != 0).any(dim=2, keepdim=True)
        of_options = torch.relu(self.read_option(rows) + of_layer.unsqueeze(1)) * present
        mean = of_options.sum(dim=1) / present.sum(dim=1).clamp(min=1)
        pooled = torch.cat([mean, of_options.amax(dim=1)], dim=1)
        return torch.relu(of_layer), of_options, pooled

    def _scores(self, of_options: Tensor, pooled: Tensor) -> Tensor:
        mixed = torch.relu(self.mix_option(of_options) + self.mix_pooled(pooled).unsqueeze(1))
        scores: Tensor = self.score(mixed).squeeze(2).clamp(-LARGEST_SCORE, LARGEST_SCORE)
        return scores


class WholeStepAdam(torch.optim.Adam):
    """Adam whose steps Ctrl-C does not cut in two: what is saved after it is the state between two steps."""

    def step(self, closure: Any = None) -> Any:
        """A step of `torch.optim.Adam`."""
        with uninterrupted():
            return super().step(closure)


class OptionPolicy(MaskableActorCriticPolicy):
    """`MaskablePPO`'s policy around an `OptionNetwork`; the network's scores are the action logits.

    Args:
        observation_space: Global fields followed by the options' rows.
        action_space: `Discrete`, one action an option.
        lr_schedule: Learning rate over the progress that remains.
        global_fields: Number of global fields.
        hidden: Width of the hidden layers.
        kwargs: The rest of `MaskableActorCriticPolicy`'s.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        global_fields: int,
        hidden: int = 64,
        **kwargs: Any,
    ) -> None:
        self.global_fields, self.hidden = global_fields, hidden
        super().__init__(observation_space, action_space, lr_schedule, **kwargs)

    def _build_mlp_extractor(self) -> None:
        options = int(self.action_space.n)  # type: ignore[attr-defined]
        option_fields = (self.features_dim - self.global_fields) // options
        network = OptionNetwork(self.global_fields, options, option_fields, self.hidden)
        self.mlp_extractor = network.to(self.device)  # type: ignore[assignment]

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        network = self.mlp_extractor
        assert isinstance(network, OptionNetwork)
        nn.init.orthogonal_(network.score.weight, gain=SCORE_GAIN)
        self.action_net = nn.Identity()
        self.optimizer = WholeStepAdam(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def _get_action_dist_from_latent(self, latent_pi: Tensor) -> MaskableDistribution:
        return self.action_dist.proba_distribution(action_logits=latent_pi)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | {"global_fields": self.global_fields, "hidden": self.hidden}


def learner_keywords(config: LearningConfig, seed: int) -> dict[str, Any]:
    """What MaskablePPO is made with to train an `OptionPolicy`, but for its environments."""
    return {
        "policy": OptionPolicy,
        "learning_rate": config.learning_rate,
        "n_steps": config.n_steps,
        "batch_size": config.batch_size,
        "n_epochs": config.n_epochs,
        "gamma": 1.0,
        "gae_lambda": config.gae_lambda,
        "clip_range": config.clip_range,
        "ent_coef": config.ent_coef,
        "policy_kwargs": {"global_fields": GLOBAL_SIZE, "hidden": config.hidden},
        "seed": seed,
        "device": "cpu",
    }
