"""Files that others wrote, read whole: a pipe or device in their place could hang, a huge one fill the memory."""

import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, TextIO

from atoffer_rl.errors import FileError

LONGEST_LINE = 2**22
"""A trial takes a few kilobytes, the header of a table some tens."""


def read_regular(path: Path, limit_bytes: int) -> bytes:
    """What the regular file `path` holds, or the file that links at `path` lead to.

    Args:
        path: The file.
        limit_bytes: The most that it may hold.

    Raises:
        FileError: If it is a folder, pipe or device, or holds more.
        OSError: If it is not there, or cannot be read.
    """
    with open_regular(path, limit_bytes) as file:
        return file.read(limit_bytes)


def bounded_lines(file: TextIO, path: str | Path) -> Iterator[str]:
    """The lines of a text: one that has no end would fill the memory.

    Args:
        file: Where they are read from.
        path: What is told of it.

    Raises:
        FileError: If a line has over `LONGEST_LINE` characters.
    """
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise FileError(f"{path} has a line of over {LONGEST_LINE} characters: choose another file")
        yield line


def open_regular(path: Path, limit_bytes: int | None = None) -> BinaryIO:
    """The regular file `path`, to be read.

    Args:
        path: The file.
        limit_bytes: The most that it may hold; None leaves that to whoever reads it.

    Raises:
        FileError: If it is a folder, pipe or device, or holds more.
        OSError: If it is not there, or cannot be read.
    """
    return open(path, "rb", opener=partial(_open_regular, limit_bytes=limit_bytes))


def _open_regular(path: str, flags: int, limit_bytes: int | None) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # a pipe that nobody writes to would wait here
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and (limit_bytes is None or status.st_size <= limit_bytes):
        return descriptor
    os.close(descriptor)
    if stat.S_ISREG(status.st_mode):
        raise FileError(f"{path} holds over {limit_bytes} bytes: choose another file")
    raise FileError(f"{path} is a folder, pipe or device: choose a regular file")
