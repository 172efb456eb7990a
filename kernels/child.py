"""A process that answers jobs over a pipe, one at a time, and may hang, crash or be killed without harm."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, TypeAlias

from atoffer_rl.errors import DeviceUnavailable

START_SECONDS = 120.0
ORPHAN_POLL_SECONDS = 1.0
WARNINGS = "PYTHONWARNINGS"
Job: TypeAlias = Callable[[Any], Any]
JobMaker: TypeAlias = Callable[[], tuple[Job, Any]]


class End(Enum):
    """How a job ended."""

    ANSWERED = "answered"
    RAISED = "raised"
    CRASHED = "crashed"
    LATE = "late"
    UNSTARTED = "unstarted"


@dataclass(frozen=True)
class Outcome:
    """What came of a job.

    Attributes:
        end: How it ended.
        value: What the job function returned, if it answered.
        reason: One line otherwise.
    """

    end: End
    value: Any = None
    reason: str = ""


class Child:
    """A process started when it is first needed, and started again after it was killed.

    Args:
        make_job: Called once in the process: returns the function that answers jobs, and what the process has to
            say about itself (`greeting`). Picklable.
        name: For people who list processes.
    """

    def __init__(self, make_job: JobMaker, name: str) -> None:
        self._make_job = make_job
        self._name = name
        self._process: Any = None
        self._pipe: Connection | None = None
        self._ready = False
        self._deadline = 0.0
        self._waiting: tuple[Any, float] | None = None
        self.busy = False
        self.greeting: Any = None
        self.starts = 0

    def wait_started(self) -> Outcome | None:
        """Start the process and wait until it is ready for jobs; what went wrong, if it is not.

        Raises:
            DeviceUnavailable: If the system refuses another process.
        """
        if self._process is None:
            self._start()
        assert self._pipe is not None
        while not self._ready:
            wait([self._pipe, self._process.sentinel], max(0.0, self._deadline - time.monotonic()))
            if (failed := self._look()) is not None:
                return failed
        return None

    def submit(self, payload: Any, limit_seconds: float) -> None:
        """Give the process a job; its time limit begins when the process has started.

        Raises:
            DeviceUnavailable: If the system refuses another process.
        """
        assert not self.busy
        if self._process is None:
            self._start()
        self.busy = True
        self._waiting = (payload, limit_seconds)
        if self._ready:
            self._send()

    def _start(self) -> None:
        with _interrupts_blocked():
            try:
                self._process, self._pipe = self._started()
            except OSError as error:
                cause = error.strerror or first_line(error)
                hint = "end other processes, or raise the limits (ulimit -u, ulimit -n)"
                raise DeviceUnavailable(f"process {self._name} cannot be started: {cause}; {hint}") from error
            self._ready = False
            self._deadline = time.monotonic() + START_SECONDS
            self.starts += 1

    def _started(self) -> tuple[Any, Connection]:
        """A new process and our end of its pipe; if it cannot be started, both ends are closed."""
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        with theirs:
            arguments = (self._make_job, theirs, os.getpid())
            process = context.Process(target=_serve, args=arguments, name=self._name, daemon=True)
            try:
                with _leftovers_untold():
                    process.start()
            except BaseException:
                ours.close()
                raise
        return process, ours

    def _send(self) -> None:
        assert self._waiting is not None
        assert self._pipe is not None
        payload, limit_seconds = self._waiting
        self._waiting = None
        self._deadline = time.monotonic() + limit_seconds
        with suppress(BrokenPipeError, ConnectionResetError):  # it died: the next look at it says so
            self._pipe.send(payload)

    @property
    def waitables(self) -> list[Any]:
        """What `multiprocessing.connection.wait` may wait for."""
        return [self._pipe, self._process.sentinel] if self.busy and self._process is not None else []

    @property
    def seconds_left(self) -> float:
        """Until the deadline of what the process is doing; infinite when it is idle."""
        return max(0.0, self._deadline - time.monotonic()) if self.busy else float("inf")

    def outcome(self) -> Outcome | None:
        """What came of the job, once; None while it is not over."""
        if not self.busy:
            return None
        found = self._look()
        if found is not None:
            self.busy = False
            self._waiting = None
        return found

    def _look(self) -> Outcome | None:
        assert self._pipe is not None
        try:
            while self._pipe.poll():
                end, value = self._pipe.recv()
                if end == "ready":
                    self._ready, self.greeting = True, value
                    if self._waiting is not None:
                        self._send()
                elif end == "unstarted":
                    self.kill()
                    return Outcome(End.UNSTARTED, reason=value)
                else:
                    return Outcome(End(end), value) if end == "answered" else Outcome(End(end), reason=value)
        except (EOFError, OSError):
            return self._died()
        if not self._process.is_alive() and not self._pipe.poll():
            return self._died()
        return self._late() if time.monotonic() >= self._deadline else None

    def _died(self) -> Outcome:
        self._process.join(START_SECONDS)
        code, started = self._process.exitcode, self._ready
        self.kill()
        cause = signal.Signals(-code).name if code is not None and code < 0 else f"exit status {code}"
        return Outcome(End.CRASHED if started else End.UNSTARTED, reason=f"the process died: {cause}")

    def _late(self) -> Outcome:
        started = self._ready
        self.kill()
        if started:
            return Outcome(End.LATE, reason="killed at its time limit")
        return Outcome(End.UNSTARTED, reason=f"the process did not start within {START_SECONDS:g} s")

    def kill(self) -> None:
        """End the process at once, whatever it is doing; the next job starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.join(START_SECONDS)
            assert self._pipe is not None
            self._pipe.close()
        self._process, self._pipe = None, None
        self._ready = self.busy = False
        self._waiting = None


@contextmanager
def _leftovers_untold() -> Iterator[None]:
    """What killed processes leave is cleaned up at our end: a helper of Python's started here warns of it otherwise."""
    before = os.environ.get(WARNINGS)
    os.environ[WARNINGS] = ",".join(filter(None, (before, "ignore:resource_tracker:UserWarning")))
    try:
        yield
    finally:
        if before is None:
            del os.environ[WARNINGS]
        else:
            os.environ[WARNINGS] = before


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Ctrl-C is the parent's to handle, once a process has started: that inherits what is blocked here."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(make_job: JobMaker, pipe: Connection, parent: int) -> None:
    """The process's main loop: make the job function, then answer until the pipe closes."""
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    try:
        job, greeting = make_job()
    except Exception as error:  # noqa: BLE001  whatever it is, the parent has to hear of it
        pipe.send(("unstarted", first_line(error)))
        return
    pipe.send(("ready", greeting))
    while True:
        try:
            payload = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            reply = ("answered", job(payload))
        except Exception as error:  # noqa: BLE001  a job's failure is an answer, not the end of the process
            reply = ("raised", first_line(error))
        pipe.send(reply)


def _follow(parent: int) -> None:
    """End this process when its parent is gone, even if a job hangs."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_POLL_SECONDS)
    os._exit(1)


def first_line(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
