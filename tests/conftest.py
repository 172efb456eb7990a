"""What tests need of a machine: they skip, and say why, where there is no usable GPU, or no compiler to emulate one."""

from functools import cache

import pytest


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
