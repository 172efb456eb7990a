"""Scratch files and folders that go with their process: who dies without a word leaves them to the next writer.

A living process holds a lock on what it made, which the system takes back when it dies.
"""

import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PARTIAL = ".partial"
"""Ends the names of what is not complete yet."""


@contextmanager
def scratch(target: Path, make: Callable[[Path], object]) -> Iterator[Path]:
    """Something new and hidden beside `target`, removed at the end if it is still there.

    What dead processes left of earlier attempts at the same target is removed, too.

    Args:
        target: What it is to become.
        make: Makes it: a file or a folder that did not exist.

    Raises:
        OSError: If it cannot be made.
    """
    prefix = f".{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:12]}-"
    for path in target.parent.glob(f"{prefix}*{PARTIAL}"):
        _remove_if_left(path)
    path, lock = _made(target.parent / prefix, make)
    try:
        yield path
    finally:
        os.close(lock)
        _remove(path)


def _made(prefix: Path, make: Callable[[Path], object]) -> tuple[Path, int]:
    """What `make` made, and the open file that holds its lock."""
    while True:
        path = prefix.with_name(f"{prefix.name}{secrets.token_hex(6)}{PARTIAL}")
        make(path)
        with suppress(FileNotFoundError):  # another process may take it for left until it is locked
            lock = os.open(path, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks, where nothing is ever taken for left
                fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                return path, lock
            os.close(lock)


def _remove_if_left(path: Path) -> None:
    with suppress(OSError):
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path)
        finally:
            os.close(lock)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
