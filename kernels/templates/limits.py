"""Numbers and limits of GPUs that several templates reckon with, and how they say that one is exceeded."""

from atoffer_rl.device import DeviceSpec

WARP_SIZE = 32
OLDEST_ARCH = 80
"""The first with asynchronous copies."""
CLUSTER_ARCH = 90
"""The first with thread-block clusters."""
MAX_THREAD_REGISTERS = 255
REGISTER_STEP = 8
"""Registers of a thread are a multiple of it."""
SHARED_BYTES_RESERVED = 1024
"""What the driver takes of a multiprocessor's shared memory for each resident block."""


def too_old(device: DeviceSpec) -> str | None:
    """Why `device` cannot copy asynchronously; None if it can."""
    if device.compute_capability < OLDEST_ARCH:
        return f"asynchronous copies need sm_{OLDEST_ARCH} or later, not {device.arch}"
    return None


def too_much_shared(needed: int, device: DeviceSpec) -> str | None:
    """Why a block of `device` cannot have `needed` bytes of dynamic shared memory; None if it can."""
    if needed > device.shared_bytes_per_block:
        return f"{needed} bytes of shared memory are needed, a block has {device.shared_bytes_per_block}"
    return None


def too_many_residents(residents: int, needed: int, device: DeviceSpec) -> str | None:
    """Why a multiprocessor of `device` cannot hold `residents` blocks of `needed` bytes; None if it can."""
    if residents * (needed + SHARED_BYTES_RESERVED) > device.shared_bytes_per_multiprocessor:
        return f"{residents} blocks of {needed} bytes of shared memory are more than a multiprocessor has"
    return None


def no_clusters(parameter: str, device: DeviceSpec) -> str | None:
    """Why `device` has no thread-block clusters, which a value of `parameter` needs; None if it has."""
    if device.compute_capability < CLUSTER_ARCH:
        return f"{parameter} needs thread-block clusters: sm_{CLUSTER_ARCH} or later, not {device.arch}"
    return None
