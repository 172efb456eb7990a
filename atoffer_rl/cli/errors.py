"""What a user sees when something goes wrong: one line on stderr, and an exit status."""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from io import StringIO, TextIOWrapper

import typer

from atoffer_rl.cli.start import INTERRUPTED, INTERRUPTION
from atoffer_rl.errors import AtofferError
from atoffer_rl.whole_file import os_reason

FAILURE, USAGE = 1, 2
# What typer raises for a wrong command line; click or typer's own copy of it defines the class.
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]


def run_guarded(program: str, job: Callable[[], object], command: str = "") -> int:
    """Run `job`; a user's mistake becomes one line on stderr.

    Args:
        program: Begins that line.
        job: What to run.
        command: What a user types to run it, whose --help tells more; `program` by default.

    Returns:
        0, the status that `job` returned, 1 for a failure, 2 for a wrong command line, 130 after Ctrl-C.
    """
    # None where the caller closed it: nobody listens.
    sys.stdout, sys.stderr = sys.stdout or StringIO(), sys.stderr or StringIO()
    threading.excepthook = _thread_failed
    try:
        _escape_what_cannot_be_encoded()
        status = job()
        sys.stdout.flush()
    except AtofferError as error:
        return _complain(program, str(error), FAILURE)
    except _ClickException as error:
        return _complain_of_usage(program, error, command or program)
    except BrokenPipeError:
        _drop_output()
        return FAILURE
    except MemoryError:
        return _complain(program, "not enough memory: reduce batch, seq_len or the budget", FAILURE)
    except OSError as error:
        _drop_output()
        return _complain(program, os_error_sentence(error), FAILURE)
    except KeyboardInterrupt:
        status = INTERRUPTED
    if status == INTERRUPTED:
        return _complain(program, INTERRUPTION, INTERRUPTED)
    return status if isinstance(status, int) else 0


def _escape_what_cannot_be_encoded() -> None:
    """Paths may hold characters that the terminal's encoding lacks, and bytes that are characters in none."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    """What a thread could not write, its owner tells (TensorBoard's writer raises in both); all else is a fault."""
    if not issubclass(failure.exc_type, OSError):
        threading.__excepthook__(failure)


def _drop_output() -> None:
    """Where what is left to print cannot be written, let it go, or the interpreter complains of it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def os_error_sentence(error: OSError) -> str:
    """What the operating system refused, and what to do about it."""
    place = f"{error.filename}: " if error.filename is not None else ""
    return f"{place}{os_reason(error)}"


def _complain_of_usage(program: str, error: Exception, command: str) -> int:
    context = getattr(error, "ctx", None)
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    if "\n" in text:  # A group that was given no command: the text is its help.
        sys.stderr.write(text + "\n")
        return USAGE
    command = context.command_path if context is not None else command
    return _complain(program, f"{text.rstrip('.')}: see {command} --help", USAGE)


def _complain(program: str, text: str, status: int) -> int:
    sys.stderr.write(f"{program}: {' '.join(text.split())}\n")
    return status
