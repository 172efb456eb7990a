import os
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from atoffer_rl.cli.interrupts import noted_interrupts


class Finalised:
    """Something whose end can be watched."""


@pytest.fixture(autouse=True)
def python_handles_interrupts():
    """As in a terminal, also where tests run with SIGINT ignored."""
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, earlier)


def test_an_interrupt_is_raised_and_noted():
    with noted_interrupts() as pressed:
        assert not pressed()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert pressed()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_that_a_finaliser_swallows_is_noted_and_not_shown(capfd):
    with noted_interrupts() as pressed:
        watched = Finalised()
        watch = weakref.ref(watched, lambda _: os.kill(os.getpid(), signal.SIGINT))
        del watched
        assert watch() is None
        assert pressed()
    assert capfd.readouterr().err == ""


def test_where_interrupts_are_ignored_they_stay_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with noted_interrupts() as pressed:
        os.kill(os.getpid(), signal.SIGINT)
        assert not pressed()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


PRESSED_WHILE_IMPORTING = """
import runpy
import sys

class Pressed:
    def find_spec(self, name, *_):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Pressed())
runpy.run_path("train_agent.py", run_name="__main__")
"""


def test_an_interrupt_while_the_command_line_is_imported_is_one_line():
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", PRESSED_WHILE_IMPORTING]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "train_agent.py: interrupted; everything measured so far is kept\n"
