"""Generated kernels on the CPU: their device code compiled by g++ for the machine of machine.h.

The headers of the templates that hold all PTX (REPLACED) are replaced by those of this folder.
Whatever a kernel does wrong ends a process of its own, with a message, never the tests.
"""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from atoffer_rl.kernels.compiler import code_hash, include_folders
from atoffer_rl.kernels.program import KernelProgram
from atoffer_rl.kernels.registry import template_named
from atoffer_rl.kernels.render import TEMPLATE_FOLDER
from atoffer_rl.scheme import Choice
from atoffer_rl.tensors import layer_tensors
from atoffer_rl.workload import Workload

COMPILER = "g++"
FOLDER = Path(__file__).parent
REPLACED = ("common.cuh", "barriers.cuh", "cluster.cuh", "tf32.cuh", "wgmma.cuh")
FLAGS = ("-O1", "-std=c++17", "-ffp-contract=off", "-w")
CHECKS = ("-fsanitize=alignment,bounds", "-fno-sanitize-recover=all")
"""Vectors in memory that are misaligned, and registers that an array does not have."""
SHARED_MEMORY = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];")
CLUSTER = re.compile(r"__cluster_dims__\((\d+), 1, 1\)")
SECONDS = 120
START = """
struct Pointer {
    void* address;
    template <class T>
    operator T*() const { return static_cast<T*>(address); }
};

void emulation::run_kernel(void* const* arguments) { ENTRY(ARGUMENTS); }
"""


class EmulationError(Exception):
    """The kernel did what a device would not survive, or does not compile."""


def reason_without_compiler() -> str:
    """Why nothing can be emulated here; empty where it can."""
    return "" if shutil.which(COMPILER) else f"{COMPILER} is not installed"


@dataclass
class EmulatedKernel:
    """A loaded program on host memory; a `Launchable` whose pointers are addresses of this process.

    Attributes:
        executable: What runs one launch.
        program: The kernel.
        sizes: Bytes of every tensor that it may name.
        residents: Blocks that take turns.
        launches: How many there were; each has an order of its own.
    """

    executable: Path
    program: KernelProgram
    sizes: Mapping[str, int]
    residents: int = 64
    launches: int = 0
    descriptor: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._own = {name: np.ascontiguousarray(array).tobytes() for name, array in self.program.plan().items()}
        self._own |= {name: bytes(size_bytes) for name, size_bytes in self.program.scratch}

    def launch(self, pointers: Mapping[str, int], stream: int = 0) -> None:
        """Run the grid once.

        Raises:
            EmulationError: With what the machine says about it.
        """
        names = self.program.arguments
        before = [
            self._own[name] if name in self._own else ctypes.string_at(pointers[name], self.sizes[name])
            for name in names
        ]
        for name, old, new in zip(names, before, self._run(before), strict=True):
            if name in self._own:
                self._own[name] = new
            elif old != new:
                ctypes.memmove(pointers[name], new, len(new))

    def array(self, name: str, dtype: Any) -> Any:
        """What a plan or scratch array holds now."""
        return np.frombuffer(self._own[name], dtype)

    def _inputs(self) -> str:
        """A letter for each argument: p for plans, and for all where nobody waits; w for what must be waited for."""
        plans = self.program.plan() if self.program.overlaps else self.program.arguments
        return "".join("p" if name in plans else "w" for name in self.program.arguments)

    def _run(self, arguments: list[bytes]) -> list[bytes]:
        file = self.executable.with_suffix(".arguments")
        sizes = np.array([len(arguments), *map(len, arguments)], np.int64)
        file.write_bytes(b"".join([sizes.tobytes(), *arguments]))
        self.launches += 1
        grid, threads = self.program.grid[0], self.program.block[0]
        cluster = CLUSTER.search(self.program.source)
        cluster_blocks = int(cluster[1]) if cluster else 1
        numbers = grid, threads, self.program.shared_bytes, min(self.residents, grid), self.launches, cluster_blocks
        _call([str(self.executable), str(file), *map(str, numbers), self._inputs()])
        ends = np.cumsum(sizes[1:]) + sizes.nbytes
        content = file.read_bytes()
        return [content[end - size : end] for end, size in zip(ends, sizes[1:], strict=True)]


class Emulator:
    """Compiles programs into `folder`, each once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._machine = folder / "machine.o"
        _compile("-c", FOLDER / "machine.cpp", "-o", self._machine)

    def load(self, workload: Workload, choice: Choice, residents: int = 64) -> EmulatedKernel:
        """`choice`, ready to be launched.

        Raises:
            EmulationError: If the compiler refuses it.
        """
        program = template_named(choice.template).program(workload, choice)
        assert isinstance(program, KernelProgram)
        sizes = {name: tensor.size_bytes for name, tensor in layer_tensors(workload).items()}
        return EmulatedKernel(self.compile(program), program, sizes, residents)

    def compile(self, program: KernelProgram) -> Path:
        """The executable of `program`."""
        folder = self._folder / code_hash(program)
        executable = folder / "kernel"
        if not executable.exists():
            folder.mkdir(exist_ok=True)
            for name in set(program.headers).difference(REPLACED):
                (folder / name).write_text(_with_shared_memory((TEMPLATE_FOLDER / name).read_text()))
            arguments = ", ".join(f"Pointer{{arguments[{place}]}}" for place in range(len(program.arguments)))
            start = START.replace("ENTRY", program.entry).replace("ARGUMENTS", arguments)
            (folder / "kernel.cpp").write_text(_with_shared_memory(program.source) + start)
            _compile(*CHECKS, f"-I{folder}", folder / "kernel.cpp", self._machine, "-o", executable)
        return executable


def _with_shared_memory(source: str) -> str:
    """Each block has its own, where C++ would have one array for all."""
    return SHARED_MEMORY.sub(r"\1* \2 = reinterpret_cast<\1*>(emulation::shared_memory());", source)


def _compile(*arguments: str | Path) -> None:
    includes = [f"-I{folder}" for folder in (FOLDER, *include_folders()[1:])]
    _call([COMPILER, *FLAGS, *includes, *map(str, arguments)])


def _call(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise EmulationError(f"{Path(command[0]).name} was not done after {SECONDS} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        told = [line for line in lines if "error" in line] or lines
        raise EmulationError("\n".join(told[:8]) or f"it ended with {done.returncode}")
