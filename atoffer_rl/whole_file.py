"""Files for users that are written whole or not at all: whoever fails or is interrupted leaves what was there."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from atoffer_rl.errors import AtofferError
from atoffer_rl.leftovers import scratch


@contextmanager
def whole_file(path: Path, kind: type[AtofferError], what: str) -> Iterator[BinaryIO]:
    """Open a file beside `path` that takes its place once all is written to it; a link's target is what is replaced.

    Args:
        path: The file; its folder must exist. What is no regular file, such as /dev/stdout, is written as it is.
        kind: What is raised if it cannot be written.
        what: What is written, for the message.

    Raises:
        AtofferError: Of `kind`, if it cannot be written; an earlier file is as it was.
    """
    try:
        with replacing(path) as file:
            yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        raise kind(f"cannot write {what} {path}: {os_reason(error)}") from error


@contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[BinaryIO]:
    """The same as `whole_file`, with the operating system's errors as they are.

    Args:
        path: The file; its folder must exist.
        durable: Whether it is on the disk before it takes the place of the earlier one.

    Raises:
        OSError: If it cannot be written; an earlier file is as it was.
    """
    if is_stream(path):  # by its own name: that of what a pipe leads to is none
        with path.open("wb") as file:
            yield file
        return
    path = real_path(path)
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    with scratch(path, lambda partial: partial.touch(exist_ok=False)) as partial:
        with partial.open("wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        if path.exists():
            partial.chmod(stat.S_IMODE(path.stat().st_mode))
        partial.replace(path)


def is_stream(path: Path) -> bool:
    """Whether `path` is there and no regular file, such as a pipe or a terminal: it cannot be replaced."""
    return path.exists() and not path.is_file()


def real_path(path: Path) -> Path:
    """`path` with all links followed.

    Raises:
        OSError: If links lead in a circle.
    """
    try:
        return path.resolve()
    except RuntimeError as error:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from error


def os_reason(error: OSError) -> str:
    """What the operating system refused, and what to do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full: free some space, or choose another folder"
    if error.errno == errno.EFBIG:
        return "it would be larger than files may be here: raise the limit (ulimit -f), or choose another folder"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "not allowed: choose a file or folder that you may use"
    return f"{error.strerror}: choose another file or folder" if error.strerror else str(error)
