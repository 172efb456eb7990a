"""Scratch files and folders go with their process, or with the next writer."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from atoffer_rl.leftovers import scratch

WRITER = """
import sys
from pathlib import Path
from atoffer_rl.leftovers import scratch
with scratch(Path(sys.argv[1]), getattr(Path, sys.argv[2])):
    print("made", flush=True)
    sys.stdin.read()
"""


def writer(target: Path, make: str) -> subprocess.Popen[str]:
    """A process that holds a scratch beside `target`."""
    words = [sys.executable, "-c", WRITER, str(target), make]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "made\n"
    return process


@pytest.mark.parametrize("make", ["touch", "mkdir"])
def test_what_a_dead_process_left_goes_with_the_next_writer_of_the_same_target(tmp_path: Path, make: str) -> None:
    living, other, dead = (writer(tmp_path / name, make) for name in ("a", "b", "a"))
    for process in (other, dead):
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert len(list(tmp_path.iterdir())) == 3
    with scratch(tmp_path / "a", getattr(Path, make)) as made:
        assert len(list(tmp_path.iterdir())) == 3  # this one, that of the other target, and that of the living process
    assert not made.exists()
    living.communicate()
    assert living.returncode == 0
    with scratch(tmp_path / "b", getattr(Path, make)):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_another_writer_removed_before_it_was_locked_is_made_again(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(path: Path) -> None:
        path.touch()
        made.append(path)
        if len(made) == 1:
            path.unlink()

    with scratch(tmp_path / "a", make) as path:
        assert made[1:] == [path] == list(tmp_path.iterdir())


def test_what_a_user_put_there_is_kept(tmp_path: Path) -> None:
    with scratch(tmp_path / "a", Path.touch) as path:
        prefix = path.name.partition("-")[0]
    (tmp_path / "mine").write_text("precious")
    (tmp_path / f"{prefix}-1.partial").symlink_to("mine")
    (tmp_path / ".a.partial").touch()
    with scratch(tmp_path / "a", Path.mkdir):
        pass
    assert {item.name for item in tmp_path.iterdir()} == {"mine", f"{prefix}-1.partial", ".a.partial"}
