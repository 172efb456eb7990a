"""Files for users are written whole or not at all."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atoffer_rl.errors import StoreError
from atoffer_rl.whole_file import os_reason, whole_file


@contextmanager
def small_files(size_bytes: int) -> Iterator[None]:
    """No file may grow larger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def write(path: Path, content: bytes = b"new") -> None:
    with whole_file(path, StoreError, "words") as file:
        file.write(content)


def test_a_file_is_made_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path)
    path.chmod(0o640)
    write(path, b"newer")
    assert path.read_bytes() == b"newer"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupted_writer_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    write(tmp_path / "a", b"old")
    with pytest.raises(error), whole_file(tmp_path / "a", StoreError, "words") as file:  # noqa: PT012
        file.write(b"half")
        raise error
    assert (tmp_path / "a").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_limit_of_file_sizes_is_told_with_the_name(tmp_path: Path) -> None:
    write(tmp_path / "a", b"old")
    for name in ("a", "b"):
        with small_files(1000), pytest.raises(StoreError, match=rf"words .*{name}: .*ulimit -f"):
            write(tmp_path / name, bytes(100_000))
    assert (tmp_path / "a").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    write(tmp_path / "a", b"old")
    (tmp_path / "link").symlink_to("a")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a").read_bytes() == b"new"


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path, tmp_path / "gone" / "a", tmp_path / "loop", Path("/dev/full")):
        with pytest.raises(StoreError, match="cannot write words") as error:
            write(path, bytes(100_000))
        assert "choose another" in str(error.value)


def test_a_device_is_written_as_it_is() -> None:
    write(Path(os.devnull))
    assert Path(os.devnull).is_char_device()


def test_a_pipe_is_written_by_its_own_name() -> None:
    source, target = os.pipe()
    write(Path(f"/dev/fd/{target}"), b"words")
    os.close(target)
    assert os.read(source, 100) == b"words"
    os.close(source)


def test_reasons_say_what_to_do() -> None:
    for number, says in ((errno.ENOSPC, "free some"), (errno.EFBIG, "ulimit"), (errno.EROFS, "you may use")):
        assert says in os_reason(OSError(number, os.strerror(number)))
    assert os_reason(OSError("odd")) == "odd"
