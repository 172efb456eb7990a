"""What tests need of a machine: they skip, and say why, where there is no usable GPU, or no compiler to emulate one."""

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

GPU_LOCK = Path(tempfile.gettempdir()) / "atoffer_gpu_tests.lock"


@cache
def reason_without_gpu() -> str:
    """Why GPU tests cannot run here; empty where they can."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no usable CUDA GPU: {error}"
    return "" if count else "no CUDA GPU"


@contextmanager
def gpu_lock(alone: bool) -> Iterator[None]:
    """Hold the GPU beside other test processes, or alone: where a test times, or breaks what all of them use."""
    with GPU_LOCK.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    marker = item.get_closest_marker("gpu")
    if marker is None or reason_without_gpu():
        return (yield)
    with gpu_lock(alone=marker.kwargs.get("alone", False)):
        return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and reason_without_gpu():
        pytest.skip(reason_without_gpu())


@pytest.fixture(scope="session")
def emulator(tmp_path_factory):
    """Runs generated kernels on the CPU."""
    from tests.emulation.emulator import Emulator, reason_without_compiler

    if reason_without_compiler():
        pytest.skip(reason_without_compiler())
    return Emulator(tmp_path_factory.mktemp("emulator"))
