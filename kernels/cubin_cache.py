"""Compiled kernels on disk, outside the package, named by a hash of everything that decides their content."""

import hashlib
import os
import stat
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from atoffer_rl.errors import FileError
from atoffer_rl.kernels.compiler import OPTIONS, code_hash, compile_kernel, compiler_version, is_cubin
from atoffer_rl.kernels.program import KernelProgram, Program
from atoffer_rl.regular_file import read_regular
from atoffer_rl.whole_file import replacing

FOLDER_VARIABLE = "ATOFFER_CACHE"
DIGEST_BYTES = 32
MOST_BYTES = 2**28


def cache_folder() -> Path:
    """`$ATOFFER_CACHE`, or `atoffer_rl` in the user's cache folder; a folder for temporary files if there is no home.

    Raises:
        FileError: If there is no home, and others may write where temporary files would go.
    """
    if chosen := os.environ.get(FOLDER_VARIABLE):
        return Path(chosen)
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "atoffer_rl"
    try:
        return Path.home() / ".cache" / "atoffer_rl"
    except RuntimeError:
        return _private_folder(Path(tempfile.gettempdir()) / f"atoffer_rl-{os.getuid()}")


def _private_folder(folder: Path) -> Path:
    """`folder`, made if it is not there, if it is this user's alone: what lies there will be run."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise FileError(f"{folder} is not yours alone, and you have no home: set {FOLDER_VARIABLE} to another folder")
    return folder


def program_hash(program: Program) -> str:
    """A hash of all that `program` executes: a kernel's text, launch and plan, or a library call's descriptor."""
    if not isinstance(program, KernelProgram):
        return hashlib.sha256(repr(program).encode()).hexdigest()[:16]
    digest = hashlib.sha256(repr((code_hash(program), replace(program, source="", headers=()))).encode())
    for name, array in program.plan().items():
        digest.update(repr((name, array.dtype.str, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


class CubinCache:
    """Cubins by program and arch. A file that is damaged counts as absent; a folder that cannot be written is not used.

    Args:
        folder: Where; `cache_folder()` by default.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = (folder or cache_folder()) / "cubins"

    def path(self, program: KernelProgram, arch: str) -> Path:
        """Where the cubin of `program` for `arch` is kept."""
        parts = (code_hash(program), program.entry, arch, OPTIONS, compiler_version())
        return self.folder / f"{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}.cubin"

    def get(self, program: KernelProgram, arch: str) -> bytes | None:
        """The cubin of `program` for `arch`, if it is there and whole."""
        try:
            content = read_regular(self.path(program, arch), MOST_BYTES)
        except (OSError, FileError):
            return None
        cubin, digest = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
        return cubin if is_cubin(cubin) and hashlib.sha256(cubin).digest() == digest else None

    def compiled(self, program: KernelProgram, arch: str) -> bytes:
        """The cubin of `program` for `arch`, compiled now if it is not there.

        Raises:
            CompileError: With the compiler's first error.
        """
        cubin = self.get(program, arch)
        if cubin is None:
            cubin = compile_kernel(program, arch)
            self.put(program, arch, cubin)
        return cubin

    def put(self, program: KernelProgram, arch: str, cubin: bytes) -> None:
        """Keep `cubin`; whoever reads at the same time sees all of it or nothing."""
        path = self.path(program, arch)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, durable=False) as file:  # the digest would tell
                # It comes last: tools that read cubins ignore what follows the ELF.
                file.write(cubin + hashlib.sha256(cubin).digest())
        except OSError:
            return
