"""Parameter spaces: which values each template tries, from its versioned `.yml` file.

A space file holds `version` and `grids`: a list of mappings from parameter to values, each optionally with
`runs` (a list of [first, last]) that it is meant for, and with `when`: the workloads that it is meant for, as the
[smallest, largest] of any of `MEASURES`. A template's candidates for a run of a workload are the products of its grids,
in file order, without repeats; the first possible one is the run's default choice.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import yaml

from atoffer_rl.kernels.render import TEMPLATE_FOLDER
from atoffer_rl.run import Run
from atoffer_rl.workload import Workload

MAX_CHOICES = 64
MEASURES: dict[str, Callable[[Workload], int]] = {
    "seq_len": lambda workload: workload.seq_len,
    "head_dim": lambda workload: workload.head_dim,
    "head_rows": lambda workload: workload.batch * workload.heads * workload.seq_len,
    "element_bytes": lambda workload: workload.element.itemsize,
}
"""What a grid may ask of a workload."""


@dataclass(frozen=True)
class Grid:
    """A product of values.

    Attributes:
        runs: The runs it is meant for; empty means all of the template's.
        values: (parameter, values) pairs in the template's order.
        when: (measure, smallest, largest) of the workloads it is meant for.
    """

    runs: frozenset[Run]
    values: tuple[tuple[str, tuple[int, ...]], ...]
    when: tuple[tuple[str, int, int], ...] = ()

    def suits(self, workload: Workload, run: Run) -> bool:
        """Whether it is meant for `run` of `workload`."""
        return (not self.runs or run in self.runs) and all(
            smallest <= MEASURES[name](workload) <= largest for name, smallest, largest in self.when
        )


@dataclass(frozen=True)
class Space:
    """One template's space file."""

    version: int
    grids: tuple[Grid, ...]

    def candidates(self, workload: Workload, run: Run) -> tuple[tuple[tuple[str, int], ...], ...]:
        """Parameter values to try for `run` of `workload`, in order, without repeats."""
        found: dict[tuple[tuple[str, int], ...], None] = {}
        for grid in self.grids:
            if not grid.suits(workload, run):
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
    values = tuple((name, tuple(values)) for name, values in item.items() if name not in ("runs", "when"))
    when = tuple((name, int(smallest), int(largest)) for name, (smallest, largest) in item.get("when", {}).items())
    return Grid(runs, values, when)
