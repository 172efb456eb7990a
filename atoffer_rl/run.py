"""A run: contiguous operators, written [first, last]."""

from typing import NamedTuple


class Run(NamedTuple):
    """Operators `first` to `last`, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"[{self.first},{self.last}]"

    def __contains__(self, operator: object) -> bool:
        return isinstance(operator, int) and self.first <= operator <= self.last
