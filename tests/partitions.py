"""All ways to cut the layer, one by one: what counts and shortest paths are compared with."""

from collections.abc import Iterator

from atoffer_rl.operators import OPERATOR_COUNT
from atoffer_rl.run import Run


def partitions(legal: frozenset[Run], first: int = 0) -> Iterator[tuple[Run, ...]]:
    """Every way to cut operators `first` to 14 into runs of `legal`."""
    if first == OPERATOR_COUNT:
        yield ()
        return
    for last in range(first, OPERATOR_COUNT):
        run = Run(first, last)
        if run in legal:
            for rest in partitions(legal, last + 1):
                yield (run, *rest)
