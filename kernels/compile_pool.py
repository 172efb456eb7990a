"""Compilation in several processes, each job under a time limit; a compiler that crashes costs its own job only."""

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from atoffer_rl.errors import CompileError, DeviceUnavailable
from atoffer_rl.kernels.child import Child, End, JobMaker
from atoffer_rl.kernels.compiler import compile_kernel
from atoffer_rl.kernels.program import KernelProgram

COMPILE_LIMIT_SECONDS = 60.0


@dataclass(frozen=True)
class Compiled:
    """What came of a compilation.

    Attributes:
        token: Whatever the job was submitted under.
        cubin: The machine code; None if there is none.
        reason: Why there is none, in one line.
        seconds: How long the compiler took.
        answered: Whether the reason is the compiler's own; else it may answer another time.
    """

    token: Any
    cubin: bytes | None
    reason: str
    seconds: float
    answered: bool = True


def make_compile_job() -> tuple[Callable[[tuple[KernelProgram, str]], tuple[bytes | None, str, float]], None]:
    """The job function of a compiling process."""
    return _compile, None


def _compile(job: tuple[KernelProgram, str]) -> tuple[bytes | None, str, float]:
    program, arch = job
    start = time.perf_counter()
    try:
        cubin, reason = compile_kernel(program, arch), ""
    except CompileError as error:
        cubin, reason = None, str(error)
    return cubin, reason, time.perf_counter() - start


class CompilePool:
    """Compiling processes, started as jobs need them.

    Args:
        processes: How many at most; one a CPU by default.
        limit_seconds: Time limit of one job.
        make_job: What each process does; tests plant others.
    """

    def __init__(
        self,
        processes: int | None = None,
        limit_seconds: float = COMPILE_LIMIT_SECONDS,
        make_job: JobMaker = make_compile_job,
    ) -> None:
        self._limit_seconds = limit_seconds
        self._children = [Child(make_job, f"atoffer-compiler-{index}") for index in range(processes or usable_cpus())]
        self._tokens: dict[Child, Any] = {}
        self._queue: deque[tuple[Any, KernelProgram, str]] = deque()

    @property
    def size(self) -> int:
        """Jobs that can run at once."""
        return len(self._children)

    @property
    def pending(self) -> int:
        """Jobs that are not over."""
        return len(self._queue) + len(self._tokens)

    def submit(self, token: Any, program: KernelProgram, arch: str) -> None:
        """Have `program` compiled for `arch`; `collect` names the result by `token`.

        Raises:
            DeviceUnavailable: If no process can be started.
        """
        # A plan is made where it is read; it need not travel, and may not be able to.
        self._queue.append((token, replace(program, plan=dict), arch))
        self._dispatch()

    def _dispatch(self) -> None:
        for child in self._children:
            if not self._queue:
                return
            if not child.busy:
                token, program, arch = self._queue[0]
                try:
                    child.submit((program, arch), self._limit_seconds)
                except DeviceUnavailable:
                    if self._tokens:
                        return  # the processes that there are take it later
                    raise
                self._queue.popleft()
                self._tokens[child] = token

    @property
    def waitables(self) -> list[Any]:
        """What `multiprocessing.connection.wait` may wait for."""
        return [item for child in self._tokens for item in child.waitables]

    @property
    def seconds_left(self) -> float:
        """Until the next time limit."""
        return min((child.seconds_left for child in self._tokens), default=float("inf"))

    def collect(self) -> list[Compiled]:
        """The jobs that ended since the last call."""
        ended = []
        for child in list(self._tokens):
            outcome = child.outcome()
            if outcome is None:
                continue
            token = self._tokens.pop(child)
            if outcome.end is End.ANSWERED:
                ended.append(Compiled(token, *outcome.value))
            else:
                ended.append(Compiled(token, None, self._blame(outcome.end, outcome.reason), 0.0, answered=False))
        self._dispatch()
        return ended

    def _blame(self, end: End, reason: str) -> str:
        cause = f"it took longer than {self._limit_seconds:g} s" if end is End.LATE else reason
        return f"no answer of the compiler: {cause}"

    def kill(self) -> None:
        """Drop all jobs and end all processes."""
        self._queue.clear()
        self._tokens.clear()
        for child in self._children:
            child.kill()


def usable_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
