"""A wrapper that makes a whole search under a budget one episode: what a policy that is to search is trained on."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import gymnasium
import numpy as np
from numpy.typing import NDArray

from atoffer_rl.envs.fusion_scheme import FAILURE_RETURN
from atoffer_rl.envs.observation import Vector
from atoffer_rl.errors import SchemeError
from atoffer_rl.kernels.ledger import Ledger
from atoffer_rl.operators import OPERATOR_COUNT

OpenLedger: TypeAlias = Callable[[int], Ledger]

SPARE_SCHEMES = 4
OPERATOR_STRIDE = 7
"""From one scheme to the next, so that all operators have their turn."""


class Search(NamedTuple):
    """Something to search.

    Attributes:
        open: Gives a fresh ledger with the given number of units.
        oracle_us: Layer latency of the best scheme, if it is known.
    """

    open: OpenLedger
    oracle_us: float | None = None


class SearchPosition(NamedTuple):
    """Where a search stands.

    Attributes:
        actions: Those taken of the scheme under way.
        schemes_left: Schemes until what is left of the budget is forfeited.
        settling: Whether the scheme under way is the one to settle on.
    """

    actions: tuple[int, ...]
    schemes_left: int
    settling: bool


class SearchEpisode(gymnasium.Wrapper[Vector, np.int64, Vector, np.int64]):
    """Each episode is a search: schemes are built one after another until the budget is spent, then one to settle on.

    Rewards: by how much the best known scheme improves, over the oracle's latency (where no oracle is known,
    over the best known latency before). A failing choice costs its unit and begins the next scheme. When the
    budget is spent the scheme under way is finished and one more is built, from measured choices only: it
    costs what it lacks to the best known one, over the same latency, but at most as much as the whole search
    gained. So where the oracle is known the return is the unfused latency minus that of the scheme settled
    on, over the oracle's. An illegal action ends the episode with reward `FAILURE_RETURN`.

    A search has as many schemes as units and `SPARE_SCHEMES` more. Where no more are left than units, each has to
    measure something new: from an operator on, another one for each scheme, only options are offered that end there,
    and before it, or where none does, only those that leave room for one that does. Where nothing is left to measure,
    it runs out of schemes, the rest of its budget is forfeited, and it settles.

    Args:
        env: A fusion scheme environment, wrapped or not.
        searches: What episodes are drawn from, all alike.
        budgets: Smallest and largest budget in units; it is drawn from its logarithm (0 draws as 1 does).
        settle: Whether the last scheme is built.
    """

    def __init__(
        self,
        env: gymnasium.Env[Vector, np.int64],
        searches: Sequence[Search],
        budgets: tuple[int, int] = (8, 128),
        settle: bool = True,
    ) -> None:
        super().__init__(env)
        self.searches, self.budgets, self.settle = tuple(searches), budgets, settle
        self._random = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Begin a search.

        Args:
            seed: Seed of the draws.
            options: `search` and `units` set what is otherwise drawn.
        """
        if seed is not None:
            self._random = np.random.default_rng(seed)
        given = options or {}
        search = given["search"] if "search" in given else self.searches[self._random.integers(len(self.searches))]
        units = given["units"] if "units" in given else self._draw_budget()
        self.ledger, self._oracle_us = search.open(units), search.oracle_us
        self._schemes_left = units + SPARE_SCHEMES
        self._settling = self.ledger.spent
        self._actions: list[int] = []
        return self.env.reset(seed=seed, options={"ledger": self.ledger})

    @property
    def position(self) -> SearchPosition:
        """Where the search stands."""
        return SearchPosition(tuple(self._actions), self._schemes_left, self._settling)

    def go_to(self, position: SearchPosition) -> Vector:
        """Take a search that was just begun, with all that had been measured, to where it stood; the observation there.

        Raises:
            SchemeError: If its actions do not begin a scheme.
        """
        observation, _ = self.env.reset(options={"ledger": self.ledger})
        for action in position.actions:
            observation, _, built, _, _ = self.env.step(np.int64(action))
            if built:
                raise SchemeError("the scheme that the search was at cannot be begun again: start a new one")
        self._actions, self._schemes_left, self._settling = list(position.actions), *position[1:]
        return observation

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Take an option; where that completes a scheme, the next one is begun."""
        before_us = self.ledger.graph.best_us
        self._actions.append(int(action))
        observation, _, built, _, info = self.env.step(action)
        if info.get("illegal", False):
            return observation, FAILURE_RETURN, True, False, info
        reward = self._improvement(before_us)
        if not built:
            return observation, reward, False, False, info
        if self._settling:
            return observation, reward - self._shortfall(info), True, False, info
        self._schemes_left -= 1
        if self._schemes_left <= 0:
            self.ledger.units = self.ledger.units_spent
        self._settling = self.ledger.spent
        if self._settling and not self.settle:
            return observation, reward, True, False, info
        self._actions = []
        observation, _ = self.env.reset(options={"ledger": self.ledger})
        return observation, reward, False, False, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions are legal, and lead to something new where that is due; never all False."""
        masks: NDArray[np.bool_] = self.env.get_wrapper_attr("action_masks")()
        if self._settling or self.ledger.units is None or self._schemes_left > self.ledger.units_left:
            return masks
        if self.env.get_wrapper_attr("operator") >= self._schemes_left * OPERATOR_STRIDE % OPERATOR_COUNT:
            new: NDArray[np.bool_] = self.env.get_wrapper_attr("unmeasured_masks")()
            if new.any():
                return new
        leading: NDArray[np.bool_] = self.env.get_wrapper_attr("leading_masks")()
        return leading if leading.any() else masks

    def _draw_budget(self) -> int:
        low, high = self.budgets
        drawn = np.exp(self._random.uniform(np.log(max(low, 1)), np.log(high + 1)))
        return int(np.clip(drawn, low, high))

    def _improvement(self, before_us: float) -> float:
        """What this step won: others may search with the same ledger."""
        return (before_us - self.ledger.graph.best_us) / (self._oracle_us or before_us)

    def _shortfall(self, info: dict[str, Any]) -> float:
        best_us, unfused_us = self.ledger.graph.best_us, self.ledger.unfused_us
        reached_us: float = min(info.get("latency_us", unfused_us), unfused_us)
        return (reached_us - best_us) / (self._oracle_us or best_us)
