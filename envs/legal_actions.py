"""A wrapper with which algorithms that know nothing of action masks can be used."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from atoffer_rl.envs.observation import OPTION_COUNT, Vector, split


class LegalActions(gymnasium.Wrapper[Vector, np.int64, Vector, np.int64]):
    """Action k takes the k-th legal option of the present decision, so that no action is illegal.

    Where n options are legal, actions from n on count again from the first: k means option k mod n. The
    observation's rows are moved to match: row k describes the k-th legal option, illegal ones are left out.

    Args:
        env: A fusion scheme environment, wrapped or not.
    """

    def __init__(self, env: gymnasium.Env[Vector, np.int64]) -> None:
        super().__init__(env)
        self._legal: NDArray[np.intp] = np.zeros(1, np.intp)

    def reset(self, **kwargs: Any) -> tuple[Vector, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(**kwargs)
        return self._look(observation), info

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Take the `action`-th legal option."""
        option = self._legal[int(action) % len(self._legal)]
        observation, reward, terminated, truncated, info = self.env.step(np.int64(option))
        return self._look(observation), float(reward), terminated, truncated, info

    def action_masks(self) -> NDArray[np.bool_]:
        """One action for each legal option."""
        masks: NDArray[np.bool_] = np.arange(OPTION_COUNT) < len(self._legal)
        return masks

    def _look(self, observation: Vector) -> Vector:
        self._legal = np.flatnonzero(self.env.get_wrapper_attr("action_masks")())
        moved = observation.copy()
        _, rows = split(moved)
        kept = rows[self._legal]
        rows[:] = 0.0
        rows[: len(kept)] = kept
        return moved
