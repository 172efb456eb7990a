"""Ctrl-C that is not lost."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], bool]]:
    """Raise KeyboardInterrupt at Ctrl-C, as ever, and note it: Python drops what is raised inside a finaliser.

    Yields:
        Whether Ctrl-C was pressed; long loops ask now and then.
    """
    # Signals reach the main thread alone; a program that ignores them, as in a shell's background, goes on ignoring.
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not handled or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    pressed: list[int] = []

    def press(number: int, _: object) -> None:
        pressed.append(number)
        raise KeyboardInterrupt

    complain = sys.unraisablehook
    signal.signal(signal.SIGINT, press)
    sys.unraisablehook = lambda lost: None if issubclass(lost.exc_type, KeyboardInterrupt) else complain(lost)
    try:
        yield lambda: bool(pressed)
    finally:
        sys.unraisablehook = complain
        signal.signal(signal.SIGINT, signal.default_int_handler)
