"""A small cost model that every measurement updates: how far above its roofline each choice will be.

The logarithm of latency over roofline is a sum of effects of the choice's template, run, both together and
each parameter value, with Gaussian priors; observations update the exact posterior one at a time.

Reference: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, section 2.1.
"""

from collections.abc import Hashable
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np

from atoffer_rl.envs.decisions import Index, decision_tree
from atoffer_rl.envs.features import Float, static_features
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.scheme import Choice

LAUNCH_US = 1.5
"""What a launch costs in a graph on top of a roofline; it keeps ratios of tiny segments sane."""
PRIOR_MEAN = 1.0
PRIOR_SPREADS = {"all": 0.7, "template": 0.4, "run": 0.4, "template and run": 0.3, "value": 0.35}
NOISE_SPREAD = 0.2


class Design(NamedTuple):
    """The effects of every choice of a legal space.

    Attributes:
        effects: (most effects of a choice, choices) numbers of effects; the last effect is a blank.
        variances: (effects,) prior variances; a blank's is 0.
        base_us: (choices,) roofline and launch.
    """

    effects: Index
    variances: Float
    base_us: Float


def _effects(choice: Choice) -> list[tuple[str, Hashable]]:
    named: list[tuple[str, Hashable]] = [
        ("all", None),
        ("template", choice.template),
        ("run", choice.run),
        ("template and run", (choice.template, choice.run)),
    ]
    return named + [("value", (choice.template, *item)) for item in choice.parameters]


@lru_cache(maxsize=64)
def design(space: LegalSpace) -> Design:
    """The design of the model for `space`, made once."""
    listed = [_effects(choice) for choice in decision_tree(space).choices]
    numbers = {effect: number for number, effect in enumerate(dict.fromkeys(chain.from_iterable(listed)))}
    width = max(len(effects) for effects in listed)
    padded = [[numbers[effect] for effect in effects] + [len(numbers)] * (width - len(effects)) for effects in listed]
    variances = [PRIOR_SPREADS[kind] ** 2 for kind, _ in numbers] + [0.0]
    base_us = static_features(space).facts.floor_us + LAUNCH_US
    return Design(np.ascontiguousarray(np.array(padded, np.intp).T), np.array(variances), base_us)


class CostModel:
    """Predictions for all choices of a workload from what was measured.

    Args:
        made: The effects of the choices.

    Attributes:
        log_us: (choices,) expected logarithm of the latency in us.
        variance: (choices,) variance of that logarithm, the choice's own noise included.
    """

    def __init__(self, made: Design) -> None:
        self._effects = made.effects
        self._covariance = np.diag(made.variances)
        self._log_base = np.log(made.base_us)
        self.log_us: Float = self._log_base + PRIOR_MEAN
        self.variance: Float = made.variances[made.effects].sum(axis=0) + NOISE_SPREAD**2

    def observe(self, number: int, latency_us: float) -> None:
        """Take in that choice `number` was measured at `latency_us`."""
        gain = self._covariance[self._effects[:, number]].sum(axis=0)
        shared = gain[self._effects].sum(axis=0)
        scale = 1.0 / self.variance[number]
        self.log_us += (np.log(latency_us) - self.log_us[number]) * scale * shared
        self.variance -= scale * shared**2
        self._covariance -= np.outer(scale * gain, gain)
