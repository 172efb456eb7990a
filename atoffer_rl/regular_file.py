"""Files that others wrote, read whole: a pipe or device in their place could hang, a huge one fill the memory."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from atoffer_rl.errors import FileError


def read_regular(path: Path, limit_bytes: int) -> bytes:
    """What the regular file `path` holds, or the file that links at `path` lead to.

    Args:
        path: The file.
        limit_bytes: The most that it may hold.

    Raises:
        FileError: If it is a folder, pipe or device, or holds more.
        OSError: If it is not there, or cannot be read.
    """
    with open_regular(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > limit_bytes:
            raise FileError(f"{path} holds over {limit_bytes} bytes: choose another file")
        return file.read(size_bytes)


def open_regular(path: Path) -> BinaryIO:
    """The regular file `path`, to be read.

    Raises:
        FileError: If it is a folder, pipe or device.
        OSError: If it is not there, or cannot be read.
    """
    return open(path, "rb", opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # a pipe that nobody writes to would wait here
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise FileError(f"{path} is a folder, pipe or device: choose a regular file")
