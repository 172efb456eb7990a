"""The structures that the driver is given, as its header lays them out on 64-bit machines."""

import ctypes

from atoffer_rl.kernels import driver_launch


def test_layout_is_the_drivers():
    attribute, config = driver_launch._Attribute, driver_launch._Config
    assert ctypes.sizeof(attribute) == 8 + 64
    assert attribute.allowed.offset == 8
    assert ctypes.sizeof(config) == 56
    assert [getattr(config, name).offset for name, _ in config._fields_] == [0, 12, 24, 32, 40, 48]
