"""Attention masks that are NumPy files: what the header says is checked before anything of its size is read."""

import hashlib
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from atoffer_rl.errors import FileError, MaskError
from atoffer_rl.quote import quote
from atoffer_rl.regular_file import open_regular
from atoffer_rl.whole_file import os_reason

MAX_ELEMENTS = 2**31 - 1
"""Kernels index a mask with 31 bits."""
LONGEST_HEADER = 2**14
SETTLED_NS = 2 * 10**9
"""A file that changed no longer ago may change again within one tick of the clock that its times are of."""
_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}

Content: TypeAlias = tuple[NDArray[np.bool_], str]


class _Header(NamedTuple):
    """What a .npy file says of its array, and where that begins."""

    shape: tuple[int, ...]
    by_column: bool
    dtype: np.dtype[Any]
    place: int


def read_mask_file(path: str, seq_len: int, batch: int | None = None) -> Content:
    """The boolean array in `path`, as (1 or batch, seq_len, seq_len), and a hash of its content.

    Args:
        path: A .npy file.
        seq_len: Tokens in a sequence.
        batch: Sequences in a batch; None accepts any number of masks.

    Raises:
        MaskError: If it cannot be read, or is not a boolean array of such a shape.
    """
    with _opened(path) as file:
        header, stat = _read_header(path, file), os.fstat(file.fileno())
    _check(path, header, seq_len, batch)
    stamp = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    settled = time.time_ns() - max(stat.st_mtime_ns, stat.st_ctime_ns) > SETTLED_NS
    return (_content if settled else _content.__wrapped__)(path, header, stamp)


@lru_cache(maxsize=4)
def _content(path: str, header: _Header, stamp: tuple[int, ...]) -> Content:
    """What `path` holds, which is not read again while its `stamp` is the same."""
    size = prod(header.shape)
    with _opened(path) as file:
        file.seek(header.place)
        data = np.frombuffer(file.read(size), np.uint8)
    if len(data) < size:
        raise _damaged(path)
    # A byte that is neither 0 nor 1 would pass for a boolean here and for something else on a device.
    array = data.reshape(header.shape, order="F" if header.by_column else "C")
    keep = np.ascontiguousarray(array.reshape(-1, *header.shape[-2:])) != 0
    keep.setflags(write=False)
    return keep, hashlib.sha256(repr(keep.shape).encode() + keep.tobytes()).hexdigest()[:16]


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    try:
        with open_regular(Path(path)) as file:
            yield file
    except FileError as error:
        raise MaskError(f"mask file {path!r} is not a file: name a .npy file") from error
    except (OSError, ValueError) as error:
        reason = os_reason(error) if isinstance(error, OSError) else f"{error}: name a .npy file"
        raise MaskError(f"cannot read mask file {path!r}: {reason}") from error


def _read_header(path: str, file: BinaryIO) -> _Header:
    start = BytesIO(file.read(LONGEST_HEADER))
    try:
        with np.errstate(over="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a header that is no Python, which the error says
            read = _READERS[npy.read_magic(start)]
            return _Header(*read(start), start.tell())
    except Exception as error:  # numpy evaluates and tokenises the header as Python: whatever either may raise
        raise _damaged(path) from error


def changed_mask(path: str) -> MaskError:
    """What is told of a file that holds another mask than it did."""
    return MaskError(f"mask file {path!r} changed while it was in use: start again")


def _damaged(path: str) -> MaskError:
    return MaskError(f"cannot read mask file {path!r}: no whole .npy file; write it with numpy.save")


def _check(path: str, header: _Header, seq_len: int, batch: int | None) -> None:
    shape = header.shape
    sizes = all(type(size) is int and size > 0 for size in shape)  # numpy takes True for a size
    if header.dtype != np.bool_ or len(shape) not in (2, 3) or not sizes:
        raise MaskError(
            f"mask file {path!r} holds {quote(header.dtype, str)} of shape {quote(shape)}: "
            "it must hold a boolean array of shape (S, S) or (B, S, S)"
        )
    if shape[-2:] != (seq_len, seq_len):
        raise MaskError(f"mask file {path!r} has shape {quote(shape)}; it must end in ({seq_len}, {seq_len})")
    masks = shape[0] if len(shape) == 3 else 1
    if batch is not None and masks not in (1, batch):
        right = f"1 or {batch}" if batch > 1 else "1"
        raise MaskError(f"mask file {path!r} holds {quote(masks)} masks, but batch is {batch}: it must hold {right}")
    if not 0 < masks * seq_len**2 <= MAX_ELEMENTS:
        raise MaskError(f"mask file {path!r} has over 2**31 elements: reduce batch or seq_len")
