"""What a driver reports becomes a device: a known model, or estimates."""

import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from atoffer_rl.device import H100, H200, KNOWN_DEVICES, DeviceSpec
from atoffer_rl.kernels.machine import (
    BUS_WIDTH_ATTRIBUTE,
    CLOCK_ATTRIBUTE,
    MEMORY_CLOCK_ATTRIBUTE,
    current_device,
)

Report = Callable[..., None]
CLOCKS = {CLOCK_ATTRIBUTE: 2_000_000, BUS_WIDTH_ATTRIBUTE: 5_120, MEMORY_CLOCK_ATTRIBUTE: 2_500_000}  # kHz, bits, kHz


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Report:
    """Let CuPy report a device's name and sizes, and `CLOCKS`."""

    def as_if(device: DeviceSpec) -> None:
        major, minor = divmod(device.compute_capability, 10)
        properties: dict[str, Any] = {
            "name": device.name.encode(),
            "major": major,
            "minor": minor,
            "multiProcessorCount": device.multiprocessors,
            "sharedMemPerBlockOptin": device.shared_bytes_per_block,
            "sharedMemPerMultiprocessor": device.shared_bytes_per_multiprocessor,
            "regsPerMultiprocessor": device.registers_per_multiprocessor,
            "l2CacheSize": device.l2_bytes,
        }
        runtime = SimpleNamespace(
            getDevice=lambda: 1,
            getDeviceProperties={1: properties}.__getitem__,
            deviceGetAttribute=lambda attribute, index: {1: CLOCKS}[index][attribute],
        )
        for name in ("cupy", "cupy.cuda"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setattr(sys.modules["cupy.cuda"], "runtime", runtime, raising=False)

    return as_if


@pytest.mark.parametrize("device", KNOWN_DEVICES, ids=lambda device: device.name)
def test_a_known_model_is_itself(report: Report, device: DeviceSpec) -> None:
    report(device)
    assert current_device() == device


def test_a_part_of_a_known_model_is_estimated(report: Report) -> None:
    part = replace(H200, multiprocessors=60, l2_bytes=31_457_280)
    report(part)
    rates = {"bandwidth_gb_s": 2_880.0, "tensor_tflops": 393.216, "float32_tflops": 24.576}
    assert_estimated(part, rates)


@pytest.mark.parametrize(
    ("arch", "tensor_tflops", "float32_tflops"),
    [
        ("sm_80", 327.68, 20.48),
        ("sm_89", 163.84, 40.96),
        ("sm_90a", 655.36, 40.96),
        ("sm_100a", 655.36, 40.96),  # a later one: as the newest whose rates are known
    ],
)
def test_an_unknown_model_is_estimated(report: Report, arch: str, tensor_tflops: float, float32_tflops: float) -> None:
    unknown = replace(H100, name="NVIDIA X", arch=arch, multiprocessors=100)
    report(unknown)
    rates = {"bandwidth_gb_s": 2_880.0, "tensor_tflops": tensor_tflops, "float32_tflops": float32_tflops}
    assert_estimated(unknown, rates)


def assert_estimated(reported: DeviceSpec, rates: dict[str, float]) -> None:
    """The current device is `reported` but for `rates`, by `CLOCKS`."""
    assert current_device().to_json() == pytest.approx(reported.to_json() | rates)
