"""Ctrl-C that is not lost, and other signals that end a program as it does."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

ENDING = (signal.SIGTERM, signal.SIGHUP)
Handler: TypeAlias = Callable[[int, FrameType | None], None]


@contextmanager
def endings_interrupt() -> Iterator[None]:
    """Let SIGTERM, and the end of the terminal, do what Ctrl-C does: clean up, and keep what was measured.

    Where Ctrl-C is ignored, as in a shell's background, they still do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ending: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        ending.append(number)
        signal.raise_signal(signal.SIGINT)  # so that whoever holds Ctrl-C back holds this back, too

    def ignore(number: int, frame: FrameType | None) -> None:
        if ending:
            signal.default_int_handler(number, frame)

    handlers: dict[int, Handler] = {number: end for number in ENDING if signal.getsignal(number) is signal.SIG_DFL}
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        handlers[signal.SIGINT] = ignore
    earlier = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], bool]]:
    """Raise KeyboardInterrupt at Ctrl-C, as ever, and note it: Python drops what is raised inside a finaliser.

    Yields:
        Whether Ctrl-C was pressed; long loops ask now and then.
    """
    # Signals reach the main thread alone; a program that ignores them, as in a shell's background, goes on ignoring.
    earlier = signal.getsignal(signal.SIGINT)
    if not callable(earlier) or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    pressed: list[int] = []

    def press(number: int, frame: FrameType | None) -> None:
        try:
            earlier(number, frame)
        except KeyboardInterrupt:
            pressed.append(number)
            raise

    complain = sys.unraisablehook
    signal.signal(signal.SIGINT, press)
    sys.unraisablehook = lambda lost: None if issubclass(lost.exc_type, KeyboardInterrupt) else complain(lost)
    try:
        yield lambda: bool(pressed)
    finally:
        sys.unraisablehook = complain
        signal.signal(signal.SIGINT, earlier)
