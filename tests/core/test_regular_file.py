"""Reading of files that others wrote."""

import io
import os
from pathlib import Path

import pytest

from atoffer_rl import regular_file
from atoffer_rl.errors import FileError
from atoffer_rl.regular_file import bounded_lines, read_regular


def test_a_regular_file_is_read_whole(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"12345")
    link.symlink_to(file)
    assert read_regular(file, 5) == read_regular(link, 5) == b"12345"
    with pytest.raises(FileError, match="file holds over 4 bytes"):
        read_regular(file, 4)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(FileError, match=f"{path} is a folder, pipe or device"):
            read_regular(path, 10)


def test_a_line_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regular_file, "LONGEST_LINE", 4)
    assert list(bounded_lines(io.StringIO("one\ntwo\n\nfour"), "text")) == ["one\n", "two\n", "\n", "four"]
    lines = bounded_lines(io.StringIO("one\nthree"), "text")
    assert next(lines) == "one\n"
    with pytest.raises(FileError, match="text has a line of over 4 characters: choose another file"):
        next(lines)


def test_a_missing_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none", 10)
