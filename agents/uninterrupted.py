"""Ctrl-C that waits."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back until the end of what must not be left half done.

    In the midst of TensorBoard's queue it would leave a lock taken, and the next write hangs; in the midst of an
    optimizer's step, a state that no checkpoint may hold.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield  # signals reach the main thread alone, and a handler that is not Python's cannot be put back
        return
    pressed: list[int] = []
    earlier = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, earlier)
        if pressed:
            signal.raise_signal(signal.SIGINT)
