"""Attention masks: their names, their parameters, and which (query, key) pairs they keep."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from atoffer_rl.errors import MaskError
from atoffer_rl.mask_file import changed_mask, read_mask_file
from atoffer_rl.quote import quote

MAX_SEQ_LEN = 32768
"""A mask is a square of so many booleans a side while it is studied: a gigabyte."""
LONGEST_OF_MANY = 4096
"""Of longer masks only the last one is remembered."""

Keep: TypeAlias = NDArray[np.bool_]
Indices: TypeAlias = NDArray[np.int32]


@dataclass(frozen=True)
class Mask:
    """A mask with all its parameters, in canonical form.

    Attributes:
        name: Canonical name.
        parameters: (name, value) pairs in canonical order.
        lengths: Document lengths (`document` only).
        path: The array's file (`file` only).
        digest: Hash of the array's content (`file` only).
    """

    name: str
    parameters: tuple[tuple[str, int], ...] = ()
    lengths: tuple[int, ...] = ()
    path: str = ""
    digest: str = ""

    def __str__(self) -> str:
        if self.name == "file":
            return f"file:{self.path}"
        if self.name == "document":
            return "document:lengths=" + "/".join(map(str, self.lengths))
        values = ",".join(f"{name}={value}" for name, value in self.parameters)
        return f"{self.name}:{values}" if values else self.name

    @property
    def identity(self) -> str:
        """What tells two masks apart: the canonical form, or a file's content."""
        return f"file:{self.digest}" if self.name == "file" else str(self)

    def keep(self, seq_len: int) -> Keep:
        """Which pairs are kept: (1 or batch, seq_len, seq_len), entry (b, query, key)."""
        return (_keep if seq_len <= LONGEST_OF_MANY else _keep_long)(self, seq_len)

    def batches(self, seq_len: int) -> int:
        """Squares it holds: 1, or one for each sequence of the batch."""
        return len(self.keep(seq_len)) if self.name == "file" else 1


def _by_offset(seq_len: int, kept: Callable[[Indices], NDArray[np.bool_]]) -> Keep:
    """The square whose entry (i, j) is `kept(i - j)`: every row is a window of one vector."""
    offsets = np.arange(seq_len - 1, -seq_len, -1, dtype=np.int32)
    return sliding_window_view(kept(offsets), seq_len)[::-1].copy()


def _dense(seq_len: int) -> Keep:
    return np.ones((seq_len, seq_len), np.bool_)


def _causal(seq_len: int) -> Keep:
    return np.tri(seq_len, dtype=np.bool_)


def _strided(seq_len: int, stride: int) -> Keep:
    return _by_offset(seq_len, lambda offset: (offset >= 0) & ((offset % stride == 0) | (offset < stride)))


def _fixed(seq_len: int, block: int) -> Keep:
    index = np.arange(seq_len, dtype=np.int32)
    keep = _causal(seq_len)
    summary = index % block == block - 1
    for start in range(0, seq_len, block):
        keep[start : start + block, :start] &= summary[:start]
    return keep


def _sliding(seq_len: int, window: int) -> Keep:
    return _by_offset(seq_len, lambda offset: np.abs(offset) <= window // 2)


def _longformer(seq_len: int, window: int, global_: int) -> Keep:
    keep = _sliding(seq_len, window)
    keep[:global_] = True
    keep[:, :global_] = True
    return keep


def _bigbird(seq_len: int, window: int, global_: int, random: int, block: int, seed: int) -> Keep:
    blocks = -(-seq_len // block)
    if random >= blocks:
        return _dense(seq_len)
    # RandomState's streams are frozen: the same seed draws the same blocks under any numpy.
    source = np.random.RandomState(seed)
    keep = _longformer(seq_len, window, global_)
    owners = np.arange(seq_len) // block
    for row in range(blocks if random else 0):
        drawn = np.zeros(blocks, np.bool_)
        drawn[source.permutation(blocks)[:random]] = True
        keep[row * block : (row + 1) * block] |= drawn[owners]
    return keep


@dataclass(frozen=True)
class _Family:
    """A named mask: its square for a length, and its parameters' defaults and smallest values."""

    square: Callable[..., Keep]
    defaults: Callable[[int], dict[str, int]]
    smallest: dict[str, int]


_FAMILIES: dict[str, _Family] = {
    "dense": _Family(_dense, lambda s: {}, {}),
    "causal": _Family(_causal, lambda s: {}, {}),
    "strided": _Family(_strided, lambda s: {"stride": isqrt(s)}, {"stride": 1}),
    "fixed": _Family(_fixed, lambda s: {"block": isqrt(s)}, {"block": 1}),
    "sliding": _Family(_sliding, lambda s: {"window": 64}, {"window": 0}),
    "longformer": _Family(_longformer, lambda s: {"window": 64, "global": 16}, {"window": 0, "global": 0}),
    "bigbird": _Family(
        _bigbird,
        lambda s: {"window": 64, "global": 16, "random": 2, "block": 16, "seed": 0},
        {"window": 0, "global": 0, "random": 0, "block": 1, "seed": 0},
    ),
}
_ALIASES = {"triangle": "causal"}
_KEYWORDS = {"global": "global_"}
MASK_NAMES = (*_FAMILIES, "document", "file")
LONGEST_NUMBER = 10


def parse_mask(text: str, seq_len: int, batch: int | None = None) -> Mask:
    """The canonical mask that `text` names for sequences of `seq_len`.

    Args:
        text: `NAME` or `NAME:parameter=value,...`; `document:lengths=a/b/c`; `file:PATH.npy`.
        seq_len: Tokens in a sequence; some defaults depend on it.
        batch: Sequences in a batch, as many as a file may hold masks; None accepts any number.

    Raises:
        MaskError: If the name, a parameter or the file is wrong.
    """
    if not isinstance(text, str):
        raise MaskError(f"mask must be text such as strided:stride=16, not {quote(text)}")
    if text.startswith("file:"):
        return Mask("file", path=text[5:], digest=read_mask_file(text[5:], seq_len, batch)[1])
    return _named_mask(text, seq_len)


@lru_cache(maxsize=256)
def _named_mask(text: str, seq_len: int) -> Mask:
    name, _, rest = text.partition(":")
    name = _ALIASES.get(name, name)
    if name == "file":
        raise MaskError("mask file takes a path, as in file:mask.npy")
    if name == "document":
        return _document_mask(rest, seq_len)
    if name not in _FAMILIES:
        raise MaskError(f"unknown mask {quote(name)}: use one of {', '.join(MASK_NAMES)}")
    family = _FAMILIES[name]
    values = family.defaults(seq_len)
    items = [item.partition("=") for item in rest.split(",") if item]
    if len({key for key, _, _ in items}) < len(items):
        raise MaskError(f"mask {name}: {quote(rest)} gives a parameter twice; give each once")
    for key, _, number in items:
        if key not in values:
            known = ", ".join(values) or "none"
            raise MaskError(f"mask {name} has no parameter {quote(key)}; it takes: {known}")
        values[key] = _whole_number(name, key, number, family.smallest[key])
    return Mask(name, tuple(values.items()))


def _whole_number(mask: str, key: str, text: str, smallest: int) -> int:
    value = int(text) if text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER else -1
    if not smallest <= value < 2**31:
        raise MaskError(f"mask {mask}: {key} must be a whole number from {smallest} to 2**31 - 1, not {quote(text)}")
    return value


def _document_mask(rest: str, seq_len: int) -> Mask:
    key, _, text = rest.partition("=")
    if key != "lengths":
        raise MaskError("mask document takes lengths, as in document:lengths=100/156")
    lengths = tuple(_whole_number("document", "lengths", item, 1) for item in text.split("/"))
    if sum(lengths) != seq_len:
        raise MaskError(f"mask document: lengths add up to {sum(lengths)}, but seq_len is {quote(seq_len)}")
    return Mask("document", lengths=lengths)


def _made(mask: Mask, seq_len: int) -> Keep:
    if mask.name == "file":
        array, digest = read_mask_file(mask.path, seq_len)
        if digest != mask.digest:
            raise changed_mask(mask.path)
    elif mask.name == "document":
        owner = np.repeat(np.arange(len(mask.lengths)), mask.lengths)
        array = (owner[:, None] == owner[None, :])[None]
    else:
        # Larger ones than twice the length, other than seeds, change nothing.
        bounded = {name: value if name == "seed" else min(value, 2 * seq_len) for name, value in mask.parameters}
        values = {_KEYWORDS.get(name, name): value for name, value in bounded.items()}
        array = _FAMILIES[mask.name].square(seq_len, **values)[None]
    array.setflags(write=False)
    return array


_keep, _keep_long = lru_cache(maxsize=8)(_made), lru_cache(maxsize=1)(_made)
