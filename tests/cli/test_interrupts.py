import os
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from atoffer_rl.agents.uninterrupted import uninterrupted
from atoffer_rl.cli.interrupts import ENDING, endings_interrupt, noted_interrupts


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


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["terminal", "background"])
def place(request):
    """Where Ctrl-C is handled, and where it is ignored; endings are as in a program that has just begun."""
    signal.signal(signal.SIGINT, request.param)
    earlier = {number: signal.signal(number, signal.SIG_DFL) for number in ENDING}
    yield request.param
    for number, handler in earlier.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDING)
def test_endings_interrupt_and_are_noted(place, number):
    with endings_interrupt():
        if place is signal.SIG_IGN:
            signal.raise_signal(signal.SIGINT)
        with noted_interrupts() as pressed:
            assert not pressed()
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
            assert pressed()
    assert signal.getsignal(signal.SIGINT) is place
    assert [signal.getsignal(ending) for ending in ENDING] == [signal.SIG_DFL] * len(ENDING)


def held_back():
    """What is done though the program is to end meanwhile."""
    done = []
    with uninterrupted():
        os.kill(os.getpid(), signal.SIGTERM)
        done.append("all of it")
    return done


def test_endings_wait_where_an_interrupt_would(place):
    with endings_interrupt(), pytest.raises(KeyboardInterrupt) as interrupt:
        held_back()
    assert interrupt.traceback[1].name == "held_back"
    assert interrupt.traceback[1].frame.f_locals["done"] == ["all of it"]


def test_endings_that_are_ignored_stay_ignored(place):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with endings_interrupt():
        signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


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
