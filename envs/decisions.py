"""The decisions an episode passes through, as a tree over the legal choices of a workload.

At each operator the first decision says where the segment ends and which template implements it; then each
parameter of the template is decided in turn. A parameter that has one possible value left is not asked. The
choices are numbered so that those which follow an option are consecutive.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from itertools import groupby
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoffer_rl.envs.observation import OPTION_COUNT
from atoffer_rl.errors import SchemeError
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice

Index: TypeAlias = NDArray[np.intp]


class Phase(Enum):
    """What a decision is about."""

    SEGMENT = "segment"
    PARAMETER = "parameter"


@dataclass(frozen=True)
class Option:
    """One way to decide.

    Attributes:
        name: In words.
        run: The segment's run.
        template: The segment's template.
        value: The parameter's value; None where the segment is decided.
        choices: Numbers of the choices that follow it.
    """

    name: str
    run: Run
    template: str
    value: int | None
    choices: range


@dataclass(frozen=True, eq=False)
class Decision:
    """A place where an episode branches.

    Attributes:
        phase: What it is about.
        first: The segment's first operator.
        open: The segment's run and template; None until they are decided.
        parameter: The parameter's name; empty where the segment is decided.
        depth: Parameters of the segment that come before this one.
        options: What there is to choose from.
        targets: For each option the decision that follows, or the number of the choice it completes.
        row: Where its options begin in a table of all options.
    """

    phase: Phase
    first: int
    open: tuple[Run, str] | None
    parameter: str
    depth: int
    options: tuple[Option, ...]
    targets: tuple["Decision | int", ...]
    row: int
    rows: slice = field(init=False)
    span: slice = field(init=False)
    starts: Index = field(init=False)
    sizes: Index = field(init=False)

    def __post_init__(self) -> None:
        if len(self.options) > OPTION_COUNT:
            raise SchemeError(f"over {OPTION_COUNT} options at operator {self.first}: narrow a template's space file")
        low, high = self.options[0].choices.start, self.options[-1].choices.stop
        starts = np.array([option.choices.start - low for option in self.options], np.intp)
        object.__setattr__(self, "rows", slice(self.row, self.row + len(self.options)))
        object.__setattr__(self, "span", slice(low, high))
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "sizes", np.array([len(option.choices) for option in self.options], np.intp))


class DecisionTree:
    """All decisions over a legal space.

    Args:
        space: What schemes are built from.

    Attributes:
        space: What schemes are built from.
        choices: Every legal choice; its place here is its number.
        numbers: The number of each choice.
        segments: The decision that opens a segment at each operator where a legal run begins.
        decisions: Every decision, by row.
        options: The options of all decisions, in the order of their rows.
        ancestors: For each choice, the rows of the options that lead to it.
    """

    def __init__(self, space: LegalSpace) -> None:
        self.space = space
        self._choices: list[Choice] = []
        self._options: list[Option] = []
        self._decisions: list[Decision] = []
        self.segments = {first: self._segment(first) for first in sorted({run.first for run in space.runs})}
        self.choices, self.options = tuple(self._choices), tuple(self._options)
        self.decisions = tuple(sorted(self._decisions, key=lambda decision: decision.row))
        self.numbers = {choice: number for number, choice in enumerate(self.choices)}
        rows: list[list[int]] = [[] for _ in self.choices]
        for row, option in enumerate(self.options):
            for number in option.choices:
                rows[number].append(row)
        self.ancestors = tuple(np.array(item, np.intp) for item in rows)

    def default_number(self, run: Run, template: str) -> int:
        """Number of the choice that `template` takes for `run` unless told otherwise."""
        return next(self.numbers[choice] for choice in self.space.choices(run) if choice.template == template)

    def _segment(self, first: int) -> Decision:
        offers = [
            (run, template, list(offered))
            for run in sorted(self.space.runs)
            if run.first == first
            for template, offered in groupby(self.space.choices(run), lambda choice: choice.template)
        ]
        row = self._take_rows(len(offers))
        options, targets = [], []
        for run, template, offered in offers:
            start = len(self._choices)
            targets.append(self._parameter(sorted(offered, key=lambda choice: choice.parameters), 0))
            numbers = range(start, len(self._choices))
            options.append(Option(f"{run} as {template}", run, template, None, numbers))
        return self._decision(Phase.SEGMENT, first, None, "", 0, options, targets, row)

    def _parameter(self, offered: Sequence[Choice], depth: int) -> "Decision | int":
        if len(offered) == 1:
            self._choices.append(offered[0])
            return len(self._choices) - 1
        groups = dict(_by_value(offered, depth))
        if len(groups) == 1:
            return self._parameter(offered, depth + 1)
        run, template, parameter = offered[0].run, offered[0].template, offered[0].parameters[depth][0]
        row = self._take_rows(len(groups))
        options, targets = [], []
        for value, members in groups.items():
            start = len(self._choices)
            targets.append(self._parameter(members, depth + 1))
            numbers = range(start, len(self._choices))
            options.append(Option(f"{parameter}={value}", run, template, value, numbers))
        return self._decision(Phase.PARAMETER, run.first, (run, template), parameter, depth, options, targets, row)

    def _take_rows(self, count: int) -> int:
        row = len(self._options)
        self._options += [_UNSET] * count
        return row

    def _decision(
        self,
        phase: Phase,
        first: int,
        opened: tuple[Run, str] | None,
        parameter: str,
        depth: int,
        options: list[Option],
        targets: list["Decision | int"],
        row: int,
    ) -> Decision:
        decision = Decision(phase, first, opened, parameter, depth, tuple(options), tuple(targets), row)
        self._options[decision.rows] = options
        self._decisions.append(decision)
        return decision


_UNSET = Option("", Run(0, 0), "", None, range(0))


def _by_value(offered: Sequence[Choice], depth: int) -> Iterator[tuple[int, list[Choice]]]:
    values = sorted({choice.parameters[depth][1] for choice in offered})
    for value in values:
        yield value, [choice for choice in offered if choice.parameters[depth][1] == value]


@lru_cache(maxsize=64)
def decision_tree(space: LegalSpace) -> DecisionTree:
    """The decisions over `space`, made once."""
    return DecisionTree(space)
