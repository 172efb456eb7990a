"""Child processes: answers, crashes, hangs, restarts."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess

import pytest

from atoffer_rl.errors import DeviceUnavailable
from atoffer_rl.kernels.child import Child, End, Outcome
from tests.kernels import planted_jobs
from tests.kernels.paths import ROOT


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    monkeypatch.syspath_prepend(ROOT)
    child = Child(planted_jobs.make_misbehaving, "planted")
    yield child
    child.kill()


def finish(child: Child, word: str, limit_seconds: float = 30.0) -> Outcome:
    child.submit(word, limit_seconds)
    while (outcome := child.outcome()) is None:
        wait(child.waitables, child.seconds_left)
    return outcome


def test_one_process_answers_job_after_job(child: Child) -> None:
    first, second = finish(child, "a"), finish(child, "b")
    assert (first.end, first.value[0]) == (End.ANSWERED, "a")
    assert second.value == ("b", first.value[1])
    assert child.greeting == "hello"
    assert child.starts == 1


def test_an_error_is_an_answer(child: Child) -> None:
    outcome = finish(child, "raise")
    assert (outcome.end, outcome.reason) == (End.RAISED, "first line")
    assert finish(child, "a").end is End.ANSWERED
    assert child.starts == 1


@pytest.mark.parametrize(("word", "reason"), [("crash", "SIGKILL"), ("exit", "exit status 3")])
def test_a_dead_process_is_replaced(child: Child, word: str, reason: str) -> None:
    outcome = finish(child, word)
    assert outcome.end is End.CRASHED
    assert reason in outcome.reason
    assert finish(child, "a").end is End.ANSWERED
    assert child.starts == 2


def test_what_a_killed_process_leaves_is_no_news() -> None:
    program = (
        "from multiprocessing.connection import wait\n"
        "from atoffer_rl.kernels.child import Child\n"
        "from tests.kernels.planted_jobs import make_misbehaving\n"
        "child = Child(make_misbehaving, 'planted')\n"
        "child.submit('lock', 30.0)\n"
        "while (outcome := child.outcome()) is None:\n"
        "    wait(child.waitables, child.seconds_left)\n"
        "child.kill()\n"
        "print(outcome.value[0])\n"
    )
    environment = os.environ | {"PYTHONWARNINGS": "default"}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    assert done.stdout == "lock\n"
    assert "leaked" not in done.stderr


def test_a_hung_process_is_killed_at_its_limit(child: Child) -> None:
    finish(child, "a")
    start = time.monotonic()
    assert finish(child, "hang", 0.5).end is End.LATE
    assert 0.4 < time.monotonic() - start < 10
    assert finish(child, "a").end is End.ANSWERED


def test_a_process_that_the_system_refuses_leaves_nothing_behind(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: BaseProcess) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    made: list[Connection] = []
    pipe = SpawnContext.Pipe

    def noted_pipe(context: SpawnContext) -> tuple[Connection, Connection]:
        made.extend(ends := pipe(context))
        return ends

    with monkeypatch.context() as patch:
        patch.setattr(SpawnProcess, "start", refuse)
        patch.setattr(SpawnContext, "Pipe", noted_pipe)
        for begin in (child.wait_started, lambda: child.submit("a", 1.0)):
            with pytest.raises(DeviceUnavailable, match="planted cannot be started: Resource temporarily") as error:
                begin()
            assert "\n" not in str(error.value)
            child.kill()
    assert len(made) == 4
    assert all(end.closed for end in made)
    assert finish(child, "a").end is End.ANSWERED


@pytest.mark.parametrize(
    ("maker", "reason"), [(planted_jobs.make_refusing, "no GPU here"), (planted_jobs.make_dying, "exit status 7")]
)
def test_a_process_that_cannot_start(monkeypatch: pytest.MonkeyPatch, maker: object, reason: str) -> None:
    monkeypatch.syspath_prepend(ROOT)
    child = Child(maker, "planted")  # type: ignore[arg-type]
    failed = child.wait_started()
    assert failed is not None
    assert failed.end is End.UNSTARTED
    assert reason in failed.reason
    assert finish(child, "a").end is End.UNSTARTED
