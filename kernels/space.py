"""Parameter spaces: which values each template tries, from its versioned `.yml` file.

A space file holds `version` and `grids`: a list of mappings from parameter to values, each optionally with
`runs` (a list of [first, last]) that it is meant for. A template's candidates for a run are the products of
its grids, in file order, without repeats; the first possible one is the run's default choice.
"""

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import yaml

from atoffer_rl.kernels.render import TEMPLATE_FOLDER
from atoffer_rl.run import Run

MAX_CHOICES = 64


@dataclass(frozen=True)
class Grid:
    """A product of values.

    Attributes:
        runs: The runs it is meant for; empty means all of the template's.
        values: (parameter, values) pairs in the template's order.
    """

    runs: frozenset[Run]
    values: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Space:
    """One template's space file."""

    version: int
    grids: tuple[Grid, ...]

    def candidates(self, run: Run) -> tuple[tuple[tuple[str, int], ...], ...]:
        """Parameter values to try for `run`, in order, without repeats."""
        found: dict[tuple[tuple[str, int], ...], None] = {}
        for grid in self.grids:
            if grid.runs and run not in grid.runs:
                continue
            names = [name for name, _ in grid.values]
            for values in product(*(options for _, options in grid.values)):
                found[tuple(zip(names, values, strict=True))] = None
        return tuple(found)


@cache
def load_space(template: str) -> Space:
    """The space file of `template`."""
    content: dict[str, Any] = yaml.safe_load((TEMPLATE_FOLDER / f"{template}.yml").read_text())
    return Space(int(content["version"]), tuple(_grid(item) for item in content["grids"]))


def _grid(item: dict[str, Any]) -> Grid:
    runs = frozenset(Run(first, last) for first, last in item.get("runs", []))
    return Grid(runs, tuple((name, tuple(values)) for name, values in item.items() if name != "runs"))
