"""NVRTC through cuda.core: a rendered kernel becomes a cubin for a named arch, without a GPU or a driver."""

import hashlib
import re
from functools import cache, lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from atoffer_rl.errors import CompileError
from atoffer_rl.kernels.program import KernelProgram
from atoffer_rl.kernels.render import TEMPLATE_FOLDER

OPTIONS = {"std": "c++17", "extra_device_vectorization": True}
"""Of every compilation; the target and the header folders come besides."""
ARCH_HINT = "name an arch such as sm_90a"
ELF_MAGIC = b"\x7fELF"
_STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


@cache
def compiler_version() -> str:
    """The NVRTC in use, as it names itself."""
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    return f"nvrtc {major}.{minor}, cuda-core {version('cuda-core')}"


@cache
def include_folders() -> tuple[str, ...]:
    """Folders that `#include` searches: the templates, then CUDA's own headers.

    Raises:
        CompileError: If CUDA's headers are not installed.
    """
    spec = find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or [])] if spec else []
    roots += [Path("/usr/local/cuda")]
    candidates = [
        folder
        for root in roots
        for folder in (*sorted(root.glob("cu1*/include")), *sorted(root.glob("*/include")), root / "include")
    ]
    cuda = [folder for folder in candidates if (folder / "cuda_fp16.h").exists()]
    if not cuda:
        raise CompileError("CUDA's headers are missing: pip install nvidia-cuda-runtime nvidia-cuda-crt")
    return (str(TEMPLATE_FOLDER), *(str(folder) for folder in dict.fromkeys(cuda)))


def code_hash(program: KernelProgram) -> str:
    """A hash of all text that decides the machine code: the source and its headers, without comments and layout."""
    digest = hashlib.sha256(code_of(program.source).encode())
    for header in sorted(program.headers):
        digest.update(code_of((TEMPLATE_FOLDER / header).read_text()).encode())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=256)
def code_of(text: str) -> str:
    """CUDA C++ without comments, blank lines, and space at the ends of lines: what the compiler makes the same of."""
    code = _STRING_OR_COMMENT.sub(lambda found: found[0] if found[0].startswith('"') else " ", text)
    return "\n".join(line for line in map(str.strip, code.splitlines()) if line)


def compile_kernel(program: KernelProgram, arch: str) -> bytes:
    """The cubin of `program` for `arch` (such as `sm_90a`).

    Raises:
        CompileError: With the compiler's first error.
    """
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(arch=arch, include_path=list(include_folders()), **OPTIONS)
    try:
        cubin = bytes(Program(program.source, "c++", options).compile("cubin").code)
    except Exception as error:  # cuda.core raises classes of its own for what the compiler refuses
        lines = [line for line in str(error).splitlines() if "error" in line] or [str(error).strip()[:300]]
        if "--gpu-architecture" in lines[0]:
            raise CompileError(f"the compiler knows no {arch!r}: {ARCH_HINT}") from error
        raise CompileError(lines[0]) from error
    if not is_cubin(cubin):  # as for compute_90, of which no chip is made
        raise CompileError(f"the compiler makes no machine code for {arch!r}: {ARCH_HINT}")
    return cubin


def is_cubin(content: bytes) -> bool:
    """Whether `content` looks like machine code, which is ELF, and not like text or nothing."""
    return content.startswith(ELF_MAGIC)
