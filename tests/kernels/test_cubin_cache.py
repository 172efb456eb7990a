"""The cache of compiled kernels: keyed by all that matters, whole or absent."""

import hashlib
import os
import pwd
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from atoffer_rl.errors import FileError
from atoffer_rl.kernels import cubin_cache
from atoffer_rl.kernels.cubin_cache import CubinCache, cache_folder, program_hash
from atoffer_rl.kernels.program import KernelProgram

PROGRAM = KernelProgram("toy", "source", ("common.cuh",), (1, 1, 1), (32, 1, 1), 0, ("x",))


def test_what_was_put_is_found_by_text_and_arch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CubinCache(tmp_path)
    assert cache.get(PROGRAM, "sm_90a") is None
    cache.put(PROGRAM, "sm_90a", b"\x7fELF")
    assert cache.get(PROGRAM, "sm_90a") == b"\x7fELF"
    assert cache.get(replace(PROGRAM, grid=(7, 1, 1)), "sm_90a") == b"\x7fELF"
    assert cache.get(PROGRAM, "sm_80") is None
    assert cache.get(replace(PROGRAM, source="other"), "sm_90a") is None
    assert cache.get(replace(PROGRAM, headers=()), "sm_90a") is None
    monkeypatch.setattr(cubin_cache, "compiler_version", lambda: "nvrtc 99")
    assert cache.get(PROGRAM, "sm_90a") is None


@pytest.mark.parametrize("content", [b"", b"short", b"\x7fELF" + bytes(40), hashlib.sha256(b"").digest()])
def test_a_damaged_entry_is_absent(tmp_path: Path, content: bytes) -> None:
    cache = CubinCache(tmp_path)
    cache.put(PROGRAM, "sm_90a", b"\x7fELF")
    cache.path(PROGRAM, "sm_90a").write_bytes(content)
    assert cache.get(PROGRAM, "sm_90a") is None
    cache.put(PROGRAM, "sm_90a", b"\x7fELF again")
    assert cache.get(PROGRAM, "sm_90a") == b"\x7fELF again"


def test_a_pipe_in_the_place_of_an_entry_is_not_read(tmp_path: Path) -> None:
    cache = CubinCache(tmp_path)
    cache.folder.mkdir()
    os.mkfifo(cache.path(PROGRAM, "sm_90a"))
    assert cache.get(PROGRAM, "sm_90a") is None


def test_a_folder_that_cannot_be_written_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = CubinCache(tmp_path / "file")
    cache.put(PROGRAM, "sm_90a", b"\x7fELF")
    assert cache.get(PROGRAM, "sm_90a") is None


def test_the_folder_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOFFER_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("ATOFFER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "atoffer_rl"


@pytest.fixture
def homeless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go for a user without a home, as in a container that knows no name of theirs."""
    for variable in ("ATOFFER_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_without_a_home_the_folder_is_a_private_one_for_temporary_files(homeless: Path) -> None:
    for _ in range(2):
        folder = cache_folder()
        assert folder == homeless / f"atoffer_rl-{os.getuid()}"
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["open", "link", "another user's"])
def test_a_folder_that_others_can_write_is_refused(homeless: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    folder = cache_folder()
    if kind == "open":
        folder.chmod(0o777)
    elif kind == "link":
        folder.rename(homeless / "mine")
        folder.symlink_to(homeless / "mine")
    else:
        monkeypatch.setattr(os, "getuid", lambda: 4321)
        folder.rename(homeless / "atoffer_rl-4321")
    with pytest.raises(FileError, match=r"is not yours alone.* set ATOFFER_CACHE to another folder"):
        cache_folder()


def test_programs_that_execute_differently_have_distinct_hashes() -> None:
    changes = (
        {"source": "other"},
        {"grid": (7, 1, 1)},
        {"shared_bytes": 16},
        {"scratch": (("sums", 4),)},
        {"overlaps": True},
        {"plan": lambda: {"list": np.zeros(2, np.int32)}},
        {"plan": lambda: {"list": np.ones(2, np.int32)}},
        {"plan": lambda: {"list": np.zeros(2, np.uint32)}},
    )
    programs = [PROGRAM, *(replace(PROGRAM, **change) for change in changes)]
    assert len({program_hash(program) for program in programs}) == len(programs)
    assert program_hash(replace(PROGRAM)) == program_hash(PROGRAM)
