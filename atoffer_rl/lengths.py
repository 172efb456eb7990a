"""Sequence lengths (padding, packing): how many tokens of each sequence of a batch are real, as a distribution."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoffer_rl.errors import WorkloadError
from atoffer_rl.quote import quote

FULL, UNIFORM, LIST = "full", "uniform", "list"
LENGTH_NAMES = (FULL, UNIFORM, LIST)
LONGEST_NUMBER = 10
ORDER_SEED = 0

LengthArray: TypeAlias = NDArray[np.int32]


@dataclass(frozen=True)
class Lengths:
    """A distribution of sequence lengths, in canonical form.

    Attributes:
        name: `full` (every sequence has all tokens), `uniform` (each is drawn for itself) or `list` (always these).
        shortest: The shortest length there may be.
        longest: The longest.
        listed: One length for each sequence (`list` only).
    """

    name: str
    shortest: int
    longest: int
    listed: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.name == UNIFORM:
            return f"{UNIFORM}:shortest={self.shortest},longest={self.longest}"
        return f"{LIST}:" + "/".join(map(str, self.listed)) if self.listed else FULL

    def bounds(self, batch: int) -> tuple[LengthArray, LengthArray]:
        """The shortest and the longest length that each sequence of a batch may have."""
        if self.listed:
            return self.draw(batch, 0), self.draw(batch, 0)
        return np.full(batch, self.shortest, np.int32), np.full(batch, self.longest, np.int32)

    def draw(self, batch: int, seed: int) -> LengthArray:
        """Lengths of a batch (batch,) int32: a function of its arguments alone."""
        if self.listed:
            return np.array(self.listed, np.int32)
        # RandomState's streams are frozen: the same seed draws the same lengths under any numpy.
        source = np.random.RandomState(seed)
        return source.randint(self.shortest, self.longest + 1, batch).astype(np.int32)

    def draw_extremes(self, batch: int, seed: int) -> LengthArray:
        """As `draw`, with the shortest and longest lengths, 0, 1 and 2 among them as far as they may occur and fit.

        A batch that is too small for all of them holds others at the next seed.
        """
        lengths = self.draw(batch, seed)
        if not self.listed:
            wanted = (self.shortest, self.longest, 0, 1, 2)
            extremes = [n for n in dict.fromkeys(wanted) if self.shortest <= n <= self.longest]
            turned = np.roll(extremes, -seed)[:batch]
            lengths[: len(turned)] = turned
        return lengths

    def typical(self, batch: int) -> LengthArray:
        """Lengths spread over the distribution as evenly as a batch allows, in a fixed shuffled order: to be timed."""
        if self.listed:
            return np.array(self.listed, np.int32)
        middles = (np.arange(batch) + 0.5) / batch
        lengths = self.shortest + np.floor(middles * (self.longest + 1 - self.shortest))
        return np.random.RandomState(ORDER_SEED).permutation(lengths).astype(np.int32)

    def mean(self, by_length: NDArray[Any]) -> float:
        """What a sequence costs on average, if one of n tokens costs `by_length[n]`."""
        if self.listed:
            return float(by_length[list(self.listed)].mean())
        return float(by_length[self.shortest : self.longest + 1].mean())


def parse_lengths(text: str, batch: int, seq_len: int) -> Lengths:
    """The canonical distribution that `text` names for `batch` sequences of at most `seq_len` tokens.

    Args:
        text: `full`; `uniform:shortest=a,longest=b`, 1 and `seq_len` where one is left out; or `list:a/b/c`, one
            length for each sequence.
        batch: Sequences in a batch.
        seq_len: The most tokens that a sequence may have.

    Raises:
        WorkloadError: If the name, a number or the count is wrong.
    """
    if not isinstance(text, str):
        raise WorkloadError(f"lengths must be text such as uniform:shortest=1,longest=128, not {quote(text)}")
    return _parsed(text, batch, seq_len)


@lru_cache(maxsize=256)
def _parsed(text: str, batch: int, seq_len: int) -> Lengths:
    name, _, rest = text.partition(":")
    if name == UNIFORM:
        return _uniform(rest, seq_len)
    if name == LIST:
        return _list(rest, batch, seq_len)
    if text != FULL:
        raise WorkloadError(f"unknown lengths {quote(text)}: use one of {', '.join(LENGTH_NAMES)}")
    return Lengths(FULL, seq_len, seq_len)


def _uniform(rest: str, seq_len: int) -> Lengths:
    values = {"shortest": 1, "longest": seq_len}
    items = [item.partition("=") for item in rest.split(",") if item]
    if len({key for key, _, _ in items}) < len(items):
        raise WorkloadError(f"lengths uniform: {quote(rest)} gives a parameter twice; give each once")
    for key, _, number in items:
        if key not in values:
            raise WorkloadError(f"lengths uniform has no parameter {quote(key)}; it takes: {', '.join(values)}")
        values[key] = _length(f"uniform: {key}", number, seq_len)
    if values["shortest"] > values["longest"]:
        raise WorkloadError(
            f"lengths uniform: shortest={values['shortest']} is over longest={values['longest']}; swap them"
        )
    return Lengths(UNIFORM, values["shortest"], values["longest"])


def _list(rest: str, batch: int, seq_len: int) -> Lengths:
    listed = tuple(_length("list: a length", item, seq_len) for item in rest.split("/"))
    if len(listed) != batch:
        raise WorkloadError(f"lengths list holds {len(listed)} lengths, but batch is {batch}: give one a sequence")
    return Lengths(LIST, min(listed), max(listed), listed)


def _length(what: str, text: str, seq_len: int) -> int:
    value = int(text) if text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER else -1
    if not 0 <= value <= seq_len:
        raise WorkloadError(f"lengths {what} must be a whole number from 0 to seq_len {seq_len}, not {quote(text)}")
    return value
