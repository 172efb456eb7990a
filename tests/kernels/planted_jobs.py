"""Jobs that misbehave on request, for child processes that tests start."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from atoffer_rl.device import H100
from atoffer_rl.kernels.program import KernelProgram
from atoffer_rl.kernels.tasks import AnchorTask, Greeting, Measured, SegmentTask, Task
from atoffer_rl.scheme import Choice
from atoffer_rl.trial import TRANSIENT, Machine, Status
from atoffer_rl.workload import Workload

MACHINE = Machine("Planted GPU", "GPU-1", "580", "13.0", "nvrtc 13.0", "none")
GOOD, CRASHES, HANGS, WRONG, RAISES, BREAKS, WONT_COMPILE, COMPILER_DIES, COMPILER_HANGS, DISTURBED = range(10)


LOCKS: list[Any] = []


def make_misbehaving() -> tuple[Callable[[str], Any], str]:
    return misbehave, "hello"


def misbehave(word: str) -> Any:
    if word == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "hang":
        time.sleep(600)
    if word == "raise":
        raise ValueError("first line\nsecond line")
    if word == "exit":
        os._exit(3)
    if word == "lock":
        LOCKS.append(get_context("spawn").Lock())
    return word, os.getpid()


def make_refusing() -> tuple[Callable[[Any], Any], None]:
    raise RuntimeError("no GPU here")


def make_dying() -> tuple[Callable[[Any], Any], None]:
    os._exit(7)


def toy_program(workload: Workload, choice: Choice) -> KernelProgram:
    """A program that says what is to become of it; a template that cannot render it raises."""
    kind = choice["kind"]
    if kind == 99:
        raise KeyError("missing")
    return KernelProgram("toy", f"kind {kind} of {choice}", (), (1, 1, 1), (1, 1, 1), 0, ())


def make_compiler(log: Path | None = None) -> tuple[Callable[[Any], Any], None]:
    return partial(pretend_to_compile, log), None


def pretend_to_compile(log: Path | None, job: tuple[KernelProgram, str]) -> tuple[bytes | None, str, float]:
    kind = int(job[0].source.split()[1])
    if kind == COMPILER_DIES:
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == COMPILER_HANGS:
        time.sleep(600)
    if kind == WONT_COMPILE:
        return None, "error: expected a ;", 0.1
    return job[0].source.encode(), "", 0.25


def gpu_maker(
    log: Path, anchors_us: tuple[float, ...] = (10.0,)
) -> Callable[[], tuple[Callable[[Task], Measured], Greeting]]:
    """A worker without a GPU. It writes what it was asked to `log`; anchors take `anchors_us` in turn."""
    return partial(_make_gpu, log, anchors_us)


def _make_gpu(log: Path, anchors_us: tuple[float, ...]) -> tuple[Callable[[Task], Measured], Greeting]:
    return partial(pretend_to_measure, log, anchors_us), Greeting(MACHINE, H100)


def pretend_to_measure(log: Path, anchors_us: tuple[float, ...], task: Task) -> Measured:
    word = "anchor" if isinstance(task, AnchorTask) else str(task.request.choice)
    with log.open("a") as file:
        file.write(word + "\n")
    if isinstance(task, AnchorTask):
        turn = log.read_text().split().count("anchor") - 1
        return Measured(Status.OK, anchors_us={"math": anchors_us[min(turn, len(anchors_us) - 1)]})
    if not isinstance(task, SegmentTask):
        return Measured(Status.OK, samples_us=(1000.0,) * task.replays)
    kind = task.request.choice["kind"]
    assert task.cubin is not None
    assert task.cubin.decode().startswith(f"kind {kind}")
    if kind == WRONG:
        return Measured(Status.WRONG_RESULT, "off by one column", max_error=1.0, error_budget=0.1)
    if kind == DISTURBED and log.read_text().splitlines().count(word) == 1:
        return Measured(Status.LAUNCH_FAILED, "timings are disturbed", detail={TRANSIENT: True})
    if kind == BREAKS:
        return Measured(Status.CRASHED, "illegal address", broken=True)
    misbehave({CRASHES: "crash", HANGS: "hang", RAISES: "raise"}.get(kind, "good"))
    samples = (5.0, 6.0, 7.0) if task.replays < 100 else (6.0,) * task.replays
    return Measured(Status.OK, samples_us=samples, verify_seconds=0.05, measure_seconds=0.03)
