"""What the GPU at hand is and how it is doing: identity, peak rates, clocks and temperature."""

import ctypes
import os
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from atoffer_rl.device import KNOWN_DEVICES, DeviceSpec
from atoffer_rl.kernels.compiler import compiler_version
from atoffer_rl.trial import Machine

ATTAINABLE_RATE, ATTAINABLE_BANDWIDTH = 0.8, 0.9  # of the datasheet's, as large products and copies reach
MEMORY_CLOCK_ATTRIBUTE, BUS_WIDTH_ATTRIBUTE, CLOCK_ATTRIBUTE = 36, 37, 13
NVML_SM_CLOCK, NVML_GPU_TEMPERATURE = 1, 0
# Flops a clock and multiprocessor, by compute capability: 16-bit tensor cores with float32 sums, float32 cores.
RATES = {80: (2048, 128), 86: (512, 256), 87: (512, 256), 89: (1024, 256), 90: (4096, 256)}
NEWEST_RATES = (4096, 256)
PACKAGES = (("cupy", "cupy-cuda13x"), ("nvmath", "'nvmath-python[cu13]'"))


def what_is_missing() -> str:
    """What live measurement lacks here, as a phrase; empty if nothing."""
    lacking = [] if gpu_count() else ["an NVIDIA GPU that the driver can use"]
    lacking += [f"{name} (pip install {package})" for name, package in PACKAGES if find_spec(name) is None]
    return ", ".join(lacking)


@cache
def gpu_count() -> int:
    """GPUs that the driver offers to this process."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1", "none"):
        return 0
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def current_device() -> DeviceSpec:
    """The current CUDA device: a known model if all its multiprocessors are there, else with rates by its clocks."""
    from cupy.cuda import runtime

    index = runtime.getDevice()
    properties: dict[str, Any] = runtime.getDeviceProperties(index)
    name, multiprocessors = properties["name"].decode(), properties["multiProcessorCount"]
    for known in KNOWN_DEVICES:
        if (name, multiprocessors) == (known.name, known.multiprocessors):
            return known
    major, minor = properties["major"], properties["minor"]
    clock_hz = runtime.deviceGetAttribute(CLOCK_ATTRIBUTE, index) * 1e3
    bus_bytes = runtime.deviceGetAttribute(BUS_WIDTH_ATTRIBUTE, index) / 8
    memory_hz = runtime.deviceGetAttribute(MEMORY_CLOCK_ATTRIBUTE, index) * 1e3
    tensor_rate, core_rate = RATES.get(10 * major + minor, NEWEST_RATES)
    per_clock = multiprocessors * clock_hz * ATTAINABLE_RATE / 1e12
    return DeviceSpec(
        name=name,
        # From Hopper on, some instructions exist for the architecture-specific target only.
        arch=f"sm_{major}{minor}" + ("a" if major >= 9 else ""),
        multiprocessors=multiprocessors,
        shared_bytes_per_block=properties["sharedMemPerBlockOptin"],
        shared_bytes_per_multiprocessor=properties["sharedMemPerMultiprocessor"],
        registers_per_multiprocessor=properties["regsPerMultiprocessor"],
        l2_bytes=properties["l2CacheSize"],
        bandwidth_gb_s=2 * memory_hz * bus_bytes * ATTAINABLE_BANDWIDTH / 1e9,  # two transfers a clock
        tensor_tflops=per_clock * tensor_rate,
        float32_tflops=per_clock * core_rate,
    )


def current_machine() -> Machine:
    """Where and with what trials are taken in this process."""
    from cupy.cuda import runtime

    index = runtime.getDevice()
    monitor = Monitor(runtime.deviceGetPCIBusId(index))
    return Machine(
        device=runtime.getDeviceProperties(index)["name"].decode(),
        uuid=monitor.uuid() or _runtime_uuid(index),
        driver=monitor.driver() or _version(runtime.driverGetVersion()),
        cuda=_version(runtime.runtimeGetVersion()),
        compiler=compiler_version(),
        libraries=_library_versions(),
    )


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _runtime_uuid(index: int) -> str:
    from cupy.cuda import runtime

    content = runtime.getDeviceProperties(index).get("uuid", b"")
    return "GPU-" + bytes(content).hex()


def _library_versions() -> str:
    if find_spec("nvmath") is None:
        return "none"
    from nvmath.bindings import cublasLt

    return f"cublasLt {cublasLt.get_version()}"


@dataclass(frozen=True)
class Health:
    """Clock and temperature, 0 where they cannot be read."""

    sm_clock_mhz: int = 0
    temperature_c: int = 0


class Monitor:
    """NVML for one GPU: microseconds a reading, and silent where the library is missing.

    Args:
        bus_id: The GPU's PCI bus identity.
    """

    def __init__(self, bus_id: str) -> None:
        self._library: Any = None
        self._handle = ctypes.c_void_p()
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        found = not library.nvmlInit_v2() and not library.nvmlDeviceGetHandleByPciBusId_v2(
            bus_id.encode(), ctypes.byref(self._handle)
        )
        self._library = library if found else None

    def health(self) -> Health:
        """Clock and temperature now."""
        if self._library is None:
            return Health()
        clock, temperature = ctypes.c_uint(0), ctypes.c_uint(0)
        self._library.nvmlDeviceGetClockInfo(self._handle, NVML_SM_CLOCK, ctypes.byref(clock))
        self._library.nvmlDeviceGetTemperature(self._handle, NVML_GPU_TEMPERATURE, ctypes.byref(temperature))
        return Health(clock.value, temperature.value)

    def uuid(self) -> str:
        """The card's own identity; empty where it cannot be read."""
        text = ctypes.create_string_buffer(96)
        if self._library is None or self._library.nvmlDeviceGetUUID(self._handle, text, len(text)):
            return ""
        return text.value.decode()

    def driver(self) -> str:
        """Driver version; empty where it cannot be read."""
        text = ctypes.create_string_buffer(96)
        if self._library is None or self._library.nvmlSystemGetDriverVersion(text, len(text)):
            return ""
        return text.value.decode()
