"""What is read back as a device has the numbers of one."""

import math
from typing import Any

import pytest

from atoffer_rl.device import DEFAULT_DEVICE, H100, KNOWN_DEVICES, DeviceSpec
from atoffer_rl.errors import StoreError
from atoffer_rl.records import recorded_tables

WHOLE, RATES = ("multiprocessors", "l2_bytes", "shared_bytes_per_block"), ("bandwidth_gb_s", "tensor_tflops")
NO_NUMBERS = (0, -1, True, "132", None, math.nan, math.inf, 1e308, [])
WRONG: list[tuple[str, Any]] = [
    *(
        (name, value)
        for name in (*WHOLE, *RATES)
        for value in (0, -1, True, "132", None, math.nan, math.inf, 1e308, [])
    ),
    *((name, 132.0) for name in WHOLE),
    *((name, 1e-300) for name in RATES),
    *(("arch", value) for value in ("", "90", "sm_", "sm_x", "sm_90b", 90, None)),
    *(("name", value) for value in ("", 3, None)),
    ("cores", 3),
]


@pytest.mark.parametrize("device", KNOWN_DEVICES, ids=lambda device: device.name)
def test_a_device_reads_back(device: DeviceSpec) -> None:
    assert DeviceSpec.from_json(device.to_json()) == device


def test_the_default_is_the_device_of_the_tables_that_ship() -> None:
    assert {table.device.name for table in recorded_tables()} == {DEFAULT_DEVICE.name}


def test_whole_numbers_are_rates_too() -> None:
    assert DeviceSpec.from_json(H100.to_json() | {"bandwidth_gb_s": 3000}).bandwidth_gb_s == 3000


@pytest.mark.parametrize(("name", "value"), WRONG, ids=repr)
def test_numbers_that_no_gpu_has(name: str, value: Any) -> None:
    with pytest.raises(StoreError, match="not a device"):
        DeviceSpec.from_json(H100.to_json() | {name: value})


@pytest.mark.parametrize("value", [None, [], 3, {}, {"name": "x"}])
def test_what_is_no_device(value: Any) -> None:
    with pytest.raises(StoreError, match="not a device"):
        DeviceSpec.from_json(value)
