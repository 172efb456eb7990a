"""From a program to something that can be launched: kernels through CuPy, library calls through `matmul_library`."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Protocol

from atoffer_rl.errors import LaunchError
from atoffer_rl.kernels.choice_program import template_program
from atoffer_rl.kernels.cubin_cache import CubinCache
from atoffer_rl.kernels.device_array import upload, zeros
from atoffer_rl.kernels.driver_launch import OVERLAPPING_CAPABILITY, DriverLaunch
from atoffer_rl.kernels.machine import current_device
from atoffer_rl.kernels.program import KernelProgram, Program
from atoffer_rl.scheme import Choice
from atoffer_rl.workload import Workload

STATIC_SHARED_LIMIT = 48 * 1024


class Launchable(Protocol):
    """A loaded program."""

    @property
    def descriptor(self) -> dict[str, str]:
        """What a library chose to execute, in its own terms; empty for a generated kernel."""
        ...

    def launch(self, pointers: Mapping[str, int], stream: int) -> None:
        """Enqueue one execution; captured if `stream` is being captured.

        Launch once before capturing: a library call may upload its pointers, or load its kernel, the first time.

        Args:
            pointers: Device address of every tensor that the program names, each a multiple of 16 bytes.
            stream: The CUDA stream's handle.

        Raises:
            LaunchError: If the launch is refused.
        """
        ...


class KernelLaunch:
    """A generated kernel in the current device's memory.

    Args:
        program: What to launch.
        cubin: Its machine code.

    Raises:
        LaunchError: If the driver refuses the code or its shared memory.
    """

    def __init__(self, program: KernelProgram, cubin: bytes) -> None:
        import cupy

        self._program = program
        errors = (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError)
        plan = program.plan()
        self._own = {name: upload(plan[name]) for name in program.arguments if name in plan}
        self._own |= {name: zeros(size_bytes) for name, size_bytes in program.scratch}
        try:
            self._function = _load_function(program, cubin)
        except errors as error:
            raise LaunchError(f"cannot load {program.entry}: {error}") from error
        overlaps = program.overlaps and current_device().compute_capability >= OVERLAPPING_CAPABILITY
        pointer = self._function.kernel.ptr
        self._launch = DriverLaunch(pointer, program.grid, program.block, program.shared_bytes, overlaps)

    @property
    def descriptor(self) -> dict[str, str]:
        """See `Launchable.descriptor`."""
        return {}

    def launch(self, pointers: Mapping[str, int], stream: int) -> None:
        """See `Launchable.launch`."""
        own, program = self._own, self._program
        addresses = [own[name].pointer if name in own else pointers[name] for name in program.arguments]
        if refused := self._launch(addresses, stream):
            raise LaunchError(f"cannot launch {program.entry}: {refused}")


def _load_function(program: KernelProgram, cubin: bytes) -> Any:
    """CuPy's function object of the program's entry point."""
    import cupy

    # RawModule reads a file, and only when its first function is asked for.
    with NamedTemporaryFile(suffix=".cubin", delete=False) as file:
        file.write(cubin)
    try:
        kernel = cupy.RawModule(path=file.name).get_function(program.entry)
        if program.shared_bytes > STATIC_SHARED_LIMIT:
            kernel.max_dynamic_shared_size_bytes = program.shared_bytes
        return kernel
    finally:
        Path(file.name).unlink()


def load_program(program: Program, cubin: bytes | None = None) -> Launchable:
    """`program` ready to be launched on the current device.

    Args:
        program: A generated kernel or a library call.
        cubin: The kernel's machine code; None for a library call.

    Raises:
        LaunchError: If the driver or the library refuses it.
    """
    if isinstance(program, KernelProgram):
        if cubin is None:
            raise LaunchError(f"{program.entry} is a generated kernel: compile it first")
        return KernelLaunch(program, cubin)
    from atoffer_rl.kernels.matmul_library import load_matmul

    return load_matmul(program)


def load_choice(workload: Workload, choice: Choice) -> Launchable:
    """`choice` compiled (or found in the cache of cubins) for the current device and loaded.

    Raises:
        CompileError: If the compiler refuses it.
        LaunchError: If the driver or the library refuses it.
    """
    program = template_program(workload, choice)
    if not isinstance(program, KernelProgram):
        return load_program(program)
    return load_program(program, CubinCache().compiled(program, current_device().arch))
