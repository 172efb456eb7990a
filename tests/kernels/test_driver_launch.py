"""Launches on a driver that only notes what it is given, and the structures as CUDA's header lays them out."""

import ctypes
from threading import Thread

import pytest

from atoffer_rl.kernels import driver_launch
from atoffer_rl.kernels.driver_launch import DriverLaunch

INVALID_CONTEXT, OUT_OF_RESOURCES = 201, 701
CONTEXT = 77


class Driver:
    """Notes launches; refuses them with `codes`, one after another, then accepts."""

    def __init__(self, codes=()):
        self.codes, self.launches, self.contexts = list(codes), [], []

    def cuCtxGetCurrent(self, context):  # noqa: N802
        context._obj.value = CONTEXT
        return 0

    def cuCtxSetCurrent(self, context):  # noqa: N802
        self.contexts.append(context.value)
        return 0

    def cuLaunchKernelEx(self, config, function, parameters, extra):  # noqa: N802
        seen = config._obj
        addresses = [ctypes.cast(pointer, ctypes.POINTER(ctypes.c_void_p))[0] for pointer in parameters]
        overlaps = seen.attribute_count and (seen.attributes[0].id, seen.attributes[0].allowed) == (6, 1)
        self.launches.append((function.value, list(seen.grid), list(seen.block), seen.shared_bytes, overlaps))
        self.launches[-1] += (seen.stream, addresses)
        return self.codes.pop(0) if self.codes else 0

    def cuGetErrorName(self, code, name):  # noqa: N802
        name._obj.value = b"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" if code == OUT_OF_RESOURCES else None
        return 0


@pytest.fixture
def launch_on(monkeypatch):
    def launch_on(driver, overlaps=True):
        monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
        return DriverLaunch(5, (1, 2, 3), [128, 1, 1], 4096, overlaps)

    return launch_on


def test_layout_is_the_drivers():
    attribute, config = driver_launch._Attribute, driver_launch._Config
    assert ctypes.sizeof(attribute) == 8 + 64
    assert attribute.allowed.offset == 8
    assert ctypes.sizeof(config) == 56
    assert [getattr(config, name).offset for name, _ in config._fields_] == [0, 12, 24, 32, 40, 48]


@pytest.mark.parametrize("overlaps", [False, True])
def test_the_driver_is_given_everything(launch_on, overlaps):
    driver = Driver()
    assert launch_on(driver, overlaps)([16, 2**40], 9) == ""
    assert driver.launches == [(5, [1, 2, 3], [128, 1, 1], 4096, overlaps, 9, [16, 2**40])]


def test_a_refusal_is_named(launch_on):
    assert launch_on(Driver([OUT_OF_RESOURCES]))([16], 9) == "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
    assert launch_on(Driver([999]))([16], 9) == "CUDA error 999"


def test_a_thread_without_a_context_gets_the_kernels(launch_on):
    driver = Driver([INVALID_CONTEXT])
    assert launch_on(driver)([16], 9) == ""
    assert driver.contexts == [CONTEXT]
    assert len(driver.launches) == 2


def test_threads_keep_their_streams(launch_on):
    driver = Driver()
    launch = launch_on(driver)
    threads = [Thread(target=lambda stream=stream: [launch([stream], stream) for _ in range(200)]) for stream in (7, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(stream == address for *_, stream, (address,) in driver.launches)
    assert len(driver.launches) == 400
