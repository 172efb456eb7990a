"""A user's mistake is one line and a status, whatever raised it."""

import errno
import io
import subprocess
import sys

import pytest
import typer

from atoffer_rl.cli.errors import run_guarded
from atoffer_rl.errors import AtofferError, BudgetSpent, MaskError


def raising(error):
    def job():
        raise error

    return job


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (MaskError("unknown mask"), 1, "x: unknown mask\n"),
        (BudgetSpent("nothing\n  left"), 1, "x: nothing left\n"),
        (OSError(errno.ENOSPC, "No space left on device", "logs/a"), 1, "x: logs/a: the disk is full"),
        (PermissionError(errno.EACCES, "Permission denied", "logs"), 1, "x: logs: not allowed: choose a file"),
        (OSError(errno.EROFS, "Read-only file system", "out"), 1, "x: out: not allowed"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a.json"), 1, "x: a.json: No such file"),
        (OSError("library is missing"), 1, "x: library is missing\n"),
        (typer.BadParameter("not a number"), 2, "x: Invalid value: not a number: see x --help\n"),
        (KeyboardInterrupt(), 130, "x: interrupted; everything measured so far is kept\n"),
        (BrokenPipeError(), 1, ""),
        (MemoryError(), 1, "x: not enough memory"),
    ],
)
def test_one_line_and_a_status(capsys, error, status, line):
    assert run_guarded("x", raising(error)) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(line)
    assert captured.err.count("\n") <= 1


def test_every_error_of_the_package_is_covered(capsys):
    kinds = [AtofferError]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        assert run_guarded("x", raising(kind("told"))) == 1
        assert capsys.readouterr().err == "x: told\n"


@pytest.mark.parametrize(("value", "status"), [(None, 0), (0, 0), (3, 3), ("text", 0)])
def test_a_command_may_return_its_status(value, status):
    assert run_guarded("x", lambda: value) == status


@pytest.mark.parametrize(
    ("redirection", "status"), [("| true", 1), (">&-", 0), (">&- 2>&-", 0), ("> /dev/full", 1), ("2>&-", 0)]
)
def test_output_that_nobody_takes_is_no_fault_of_ours(redirection, status):
    program = "from atoffer_rl.cli.start import main; main()"
    command = f"{sys.executable} -c '{program}' schemes {redirection}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.stderr.count("\n") <= 1


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize(("encoding", "shown"), [("ascii", b"\\xe9\\udcff"), ("utf-8", b"\xc3\xa9\\udcff")])
def test_characters_that_cannot_be_encoded_are_escaped(monkeypatch, name, encoding, shown):
    taken = io.BytesIO()
    stream = io.TextIOWrapper(taken, encoding=encoding, write_through=True)
    monkeypatch.setattr(sys, name, stream)
    assert run_guarded("x", lambda: getattr(sys, name).write("\xe9\udcff")) == 2
    assert taken.getvalue() == shown


def test_a_fault_of_ours_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        run_guarded("x", lambda: 1 / 0)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["schemes", "--why", "1"], "Option '--why' requires 2 arguments: see atoffer schemes --help"),
        (["bench", "mha", "--replays"], "requires an argument: see atoffer bench mha --help"),
        (["nope"], "No such command 'nope': see atoffer --help"),
        (["schemes", "--colour"], "No such option: --colour"),
        (["schemes", "--batch", "many"], "Invalid value for '--batch'"),
        (["masks", "strided", "--seq-len", "0"], "Invalid value for '--seq-len'"),
    ],
)
def test_a_wrong_command_line_is_status_2(atoffer, words, says):
    outcome = atoffer(*words)
    assert outcome.status == 2
    assert says in outcome.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--batch", "0"], "batch must be a positive whole number"),
        (["--dtype", "int8"], "dtype must be one of"),
        (["--mask", "ring"], "unknown mask 'ring'"),
        (["--mask", "file:gone.npy"], "cannot read mask file"),
        (["--activation", "swish"], "activation must be one of"),
        (["--epsilon", "2"], "epsilon must be at least 0"),
        (["--lengths", "short"], "unknown lengths 'short'"),
        (["--packed"], "full sequences cannot be packed"),
        (["--lengths", "list:1/2"], "holds 2 lengths, but batch is 16"),
        (["--lengths", "uniform:longest=300"], "a whole number from 0 to seq_len 256"),
        (["--batch", "100000", "--seq-len", "4096"], "reduce batch or seq_len"),
    ],
)
@pytest.mark.parametrize("command", ["schemes", "explain"])
def test_a_wrong_workload_is_status_1(atoffer, command, words, says):
    outcome = atoffer(command, *words)
    assert outcome.status == 1
    assert says in outcome.err
