"""The rule of GPU tests: one marked `gpu` skips, and says why, where there is no usable CUDA GPU with CuPy."""

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
