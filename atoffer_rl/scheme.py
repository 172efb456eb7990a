"""Choices and schemes: what is executed for each run, and how a whole layer is cut."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from atoffer_rl.errors import SchemeError
from atoffer_rl.operators import OPERATOR_COUNT
from atoffer_rl.quote import quote
from atoffer_rl.run import Run

PLAIN = "plain"
EXECUTION_OPTIONS = (PLAIN,)
LARGEST_PARAMETER = 2**63 - 1


@dataclass(frozen=True)
class Choice:
    """A template with a value for each of its parameters, for one run.

    Attributes:
        run: The operators it implements.
        template: The template's name.
        parameters: (name, value) pairs in the template's own order; two choices are equal in any order of theirs.
    """

    run: Run
    template: str
    parameters: tuple[tuple[str, int], ...] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Choice):
            return NotImplemented
        if self.run != other.run or self.template != other.template:
            return False
        return self.parameters == other.parameters or sorted(self.parameters) == sorted(other.parameters)

    def __hash__(self) -> int:
        return hash((self.run, self.template, frozenset(self.parameters)))

    def __getitem__(self, name: str) -> int:
        """The value of parameter `name`."""
        return dict(self.parameters)[name]

    def __str__(self) -> str:
        values = ",".join(f"{name}={value}" for name, value in self.parameters)
        return f"{self.run}:{self.template}" + (f"({values})" if values else "")

    @property
    def values(self) -> str:
        """Its parameters, for people."""
        return " ".join(f"{name}={value}" for name, value in self.parameters)

    def to_json(self) -> dict[str, Any]:
        """The choice as plain JSON values."""
        return {"run": list(self.run), "template": self.template, "parameters": dict(self.parameters)}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The choice that `to_json` wrote.

        Raises:
            SchemeError: If a field is missing or of the wrong type.
        """
        try:
            first, last = map(_whole_number, value["run"])
            parameters = tuple((str(name), _whole_number(number)) for name, number in value["parameters"].items())
            return cls(Run(first, last), str(value["template"]), parameters)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            wanted = "it needs run, template and parameters, which map names to whole numbers"
            raise SchemeError(f"not a choice: {quote(value)}: {wanted}") from error


@dataclass(frozen=True)
class Scheme:
    """Execution options and one choice for each segment of the layer.

    Attributes:
        choices: The segments' choices, covering operators 0 to 14 once each, in order.
        execution: The execution option of the whole forward.

    Raises:
        SchemeError: If the runs do not cover the layer in order, or the option is unknown.
    """

    choices: tuple[Choice, ...]
    execution: str = PLAIN

    def __post_init__(self) -> None:
        if self.execution not in EXECUTION_OPTIONS:
            raise SchemeError(f"execution must be one of {', '.join(EXECUTION_OPTIONS)}, not {quote(self.execution)}")
        if not self.choices:
            raise SchemeError(f"a scheme needs segments that cover operators 0 to {OPERATOR_COUNT - 1}; this has none")
        for choice in self.choices:
            if not 0 <= choice.run.first <= choice.run.last < OPERATOR_COUNT:
                run = quote(choice.run, str)
                raise SchemeError(f"segment {run} must lie in operators 0 to {OPERATOR_COUNT - 1}, in order")
        expected = 0
        for choice in self.choices:
            if expected == OPERATOR_COUNT:
                raise SchemeError(f"segment {choice.run} is one too many: those before it cover the whole layer")
            if choice.run.first != expected:
                raise SchemeError(f"segment {choice.run} must begin at operator {expected}: runs follow one another")
            expected = choice.run.last + 1
        if expected != OPERATOR_COUNT:
            raise SchemeError(f"a scheme covers operators 0 to {OPERATOR_COUNT - 1}; this one stops before {expected}")

    @property
    def runs(self) -> tuple[Run, ...]:
        """The partition as runs."""
        return tuple(choice.run for choice in self.choices)

    @property
    def key(self) -> str:
        """A short, stable name of this scheme."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """The scheme as plain JSON values."""
        return {"execution": self.execution, "segments": [choice.to_json() for choice in self.choices]}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The scheme that `to_json` wrote.

        Raises:
            SchemeError: If it is not a scheme.
        """
        if not isinstance(value, Mapping) or not isinstance(value.get("segments"), list):
            raise SchemeError('a scheme is a JSON object with "execution" and "segments"')
        return cls(tuple(Choice.from_json(item) for item in value["segments"]), value.get("execution", PLAIN))


def _whole_number(value: Any) -> int:
    """`value`, which must be a whole number of a parameter or a run."""
    if type(value) is not int or abs(value) > LARGEST_PARAMETER:
        raise TypeError("not a whole number that a parameter may be")
    return value


def finest_partition(legal: frozenset[Run]) -> tuple[Run, ...]:
    """The partition into most runs of `legal`, the shortest first; empty if there is none."""
    finest: dict[int, tuple[Run, ...]] = {OPERATOR_COUNT: ()}
    for first in reversed(range(OPERATOR_COUNT)):
        runs = [run for run in sorted(legal) if run.first == first and run.last + 1 in finest]
        if runs:
            finest[first] = max(((run, *finest[run.last + 1]) for run in runs), key=len)
    return finest.get(0, ())


def count_partitions(legal: frozenset[Run]) -> int:
    """How many ways there are to cut the layer into runs of `legal`."""
    return count_schemes(dict.fromkeys(legal, 1))


def count_schemes(choice_counts: Mapping[Run, int]) -> int:
    """How many schemes there are when run r can be implemented in `choice_counts[r]` ways."""
    ways = [1] + [0] * OPERATOR_COUNT
    for end in range(1, OPERATOR_COUNT + 1):
        ways[end] = sum(ways[run.first] * count for run, count in choice_counts.items() if run.last == end - 1)
    return ways[OPERATOR_COUNT]
