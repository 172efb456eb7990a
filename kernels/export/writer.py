"""Writes an export: generated sources, cubins, plans, a manifest with checksums, and the runtime beside them."""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from atoffer_rl import __version__
from atoffer_rl.device import DeviceSpec
from atoffer_rl.errors import ExportError, FileError
from atoffer_rl.kernels.choice_program import template_program
from atoffer_rl.kernels.cubin_cache import CubinCache
from atoffer_rl.kernels.export.archs import check_arch, check_runs_on
from atoffer_rl.kernels.export.payload.runtime import (
    BEST,
    FORMAT,
    MANIFEST,
    MOST_MANIFEST_BYTES,
    SAFE,
    VERIFIED,
    VERIFYING,
    manifest_checksum,
)
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.program import KernelProgram, PlanArray
from atoffer_rl.kernels.render import TEMPLATE_FOLDER
from atoffer_rl.leftovers import scratch
from atoffer_rl.liveness import plan_buffers
from atoffer_rl.operators import WEIGHTS
from atoffer_rl.regular_file import read_regular
from atoffer_rl.scheme import Choice, Scheme
from atoffer_rl.tensors import layer_tensors
from atoffer_rl.trial import Trial
from atoffer_rl.whole_file import os_reason, real_path
from atoffer_rl.workload import Workload

PAYLOAD = (
    *(f"atoffer_rl.kernels.export.payload.{name}" for name in ("runtime", "reference", "verification", "bench")),
    "atoffer_rl.kernels.driver_launch",
)
LIBRARY_FOLDER = "atoffer_library"
LIBRARY_MODULES = (
    "atoffer_rl.errors",
    "atoffer_rl.kernels.program",
    "atoffer_rl.kernels.device_array",
    "atoffer_rl.kernels.matmul_library",
)
TOLERANCE_RULE = "max|out - ref| <= 2 * (max|eager - ref| + eps * max|ref|), ref in float64"
MADE_WITH = "atoffer_rl "
COMPILED = "__pycache__"


@dataclass(frozen=True)
class Export:
    """What an export is made from.

    Attributes:
        workload: What the scheme is for.
        scheme: The scheme to ship.
        device: The GPU it was tuned for.
        archs: Compiler targets to ship cubins for.
        trials: Measurements of the scheme's choices, kept in the manifest.
        forward: Measurement of the whole forward, if there is one.
    """

    workload: Workload
    scheme: Scheme
    device: DeviceSpec
    archs: tuple[str, ...]
    trials: Mapping[Choice, Trial]
    forward: Trial | None = None


def write_export(export: Export, folder: Path) -> Path:
    """Write `export` to `folder`, replacing an earlier export there.

    Returns:
        The folder.

    Raises:
        SchemeError: If the scheme is not legal for the workload.
        CompileError: If a kernel does not compile for one of the archs.
        ExportError: If an arch is none, or has not what a kernel needs, or the folder holds something else or cannot be
            written.
    """
    for arch in export.archs:
        check_arch(arch)
    space = LegalSpace(export.workload, export.device)
    space.check(export.scheme)
    for arch in export.archs:
        check_runs_on(export.workload, (*export.scheme.choices, *space.unfused.choices), arch, export.device)
    target = check_folder(folder)
    with _writing(folder), scratch(target, Path.mkdir) as parent:
        made = parent / "export"
        _Writer(export, made).write()
        _replace(target, made, parent / "replaced")
    return folder


def _replace(target: Path, made: Path, replaced: Path) -> None:
    try:
        if target.exists():
            target.rename(replaced)
        made.rename(target)
    except BaseException:
        if replaced.exists() and not target.exists():
            replaced.rename(target)
        raise


def check_folder(folder: Path) -> Path:
    """Accept a folder that an export can be written to; the folder that it lies in is made.

    Returns:
        The folder, with all links followed.

    Raises:
        ExportError: If it holds something else, or cannot be written.
    """
    with _writing(folder):
        target = real_path(folder)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            _check_earlier(folder, target)
        if target.exists() and Path.cwd().is_relative_to(target):
            raise ExportError(f"{folder} is the folder that you are in: go to another, or choose another folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        with scratch(target, Path.mkdir):
            pass
    return target


def _check_earlier(folder: Path, target: Path) -> None:
    """Accept an export that may be replaced, with nothing of the user's in it."""
    files = {MANIFEST, VERIFIED, VERIFYING, *_exported_files(folder)}
    folders = {str(parent) for name in files for parent in Path(name).parents}
    for path in sorted(target.rglob("*")):
        name = str(path.relative_to(target))
        if path.is_symlink():
            known = False
        elif path.is_dir():
            known = name in folders or path.name == COMPILED
        else:
            known = name in files or (path.parent.name == COMPILED and path.suffix == ".pyc")
        if not known:
            raise ExportError(
                f"{folder / name} is not of the export that lies there: move it, or choose another folder"
            )


def _exported_files(folder: Path) -> list[str]:
    """What the manifest in `folder` says an export wrote; it is this program's, and as it was written."""
    try:
        manifest = json.loads(read_regular(folder / MANIFEST, MOST_MANIFEST_BYTES))
        sealed = manifest["checksum"] == manifest_checksum(manifest)
        if sealed and str(manifest["made_with"]).startswith(MADE_WITH) and isinstance(manifest["files"], dict):
            return list(manifest["files"])
    except (OSError, FileError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass  # whatever it is, it is no export
    raise ExportError(f"{folder} is not an export, or a damaged one: move it away, or choose another folder")


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ExportError(f"cannot write the export to {folder}: {os_reason(error)}") from error


class _Writer:
    """Fills one folder."""

    def __init__(self, export: Export, folder: Path) -> None:
        self.export, self.folder = export, folder
        self.plan_files: dict[str, str] = {}
        self.scratch_bytes: dict[str, int] = {}
        self.cache = CubinCache()
        for name in ("source", "plan", *(f"cubin/{arch}" for arch in export.archs)):
            (folder / name).mkdir(parents=True)

    def write(self) -> None:
        workload = self.export.workload
        safe = LegalSpace(workload, self.export.device).unfused
        schemes = {BEST: self._scheme(self.export.scheme), SAFE: self._scheme(safe)}
        library = any(segment["kind"] == "library" for segment in schemes[BEST]["segments"])
        self._copy_payload(library)
        keep = workload.mask_spec.keep(workload.seq_len)
        np.save(self.folder / "plan/mask.npy", np.packbits(keep, axis=-1))
        tensors = layer_tensors(workload)
        manifest = {
            "format": FORMAT,
            "made_with": MADE_WITH + __version__,
            "workload": workload.to_json(),
            "tensors": {name: list(tensor.shape) for name, tensor in tensors.items()},
            "weights": list(WEIGHTS),
            "mask": "plan/mask.npy",
            "lengths": self._lengths(),
            "packed": workload.packed,
            "archs": list(self.export.archs),
            "plan": self.plan_files,
            "scratch_bytes": self.scratch_bytes,
            "schemes": schemes,
            "requires": ["cupy", *(["nvmath-python"] if library else [])],
            "tolerance": self._tolerance(),
            "measured": self._measured(),
            "files": self._checksums(),
        }
        manifest["checksum"] = manifest_checksum(manifest)
        (self.folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")

    def _lengths(self) -> dict[str, list[int]] | None:
        """The shortest and longest length of each sequence, and those that were timed; None where all are full."""
        workload = self.export.workload
        if not workload.padded:
            return None
        known = workload.length_spec
        shortest, longest = known.bounds(workload.batch)
        timed = known.typical(workload.batch)
        return {"shortest": shortest.tolist(), "longest": longest.tolist(), "timed": timed.tolist()}

    def _scheme(self, scheme: Scheme) -> dict[str, Any]:
        buffers = plan_buffers(self.export.workload, scheme.runs)
        return {
            "scheme": scheme.to_json(),
            "segments": [self._segment(choice) for choice in scheme.choices],
            "buffers": {
                name: {"offset_bytes": offset, "size_bytes": buffers.sizes_bytes[name]}
                for name, offset in buffers.offsets_bytes.items()
            },
            "peak_bytes": buffers.peak_bytes,
        }

    def _segment(self, choice: Choice) -> dict[str, Any]:
        program = template_program(self.export.workload, choice)
        described = {"run": list(choice.run), "template": choice.template, "parameters": dict(choice.parameters)}
        if isinstance(program, KernelProgram):
            return described | self._kernel(choice, program)
        return described | {"kind": "library", "program": asdict(program), "algorithm": self._algorithm(choice)}

    def _kernel(self, choice: Choice, program: KernelProgram) -> dict[str, Any]:
        name = f"run_{choice.run.first}_{choice.run.last}_{choice.template}_{_text_hash(str(choice))}"
        (self.folder / "source" / f"{name}.cu").write_text(program.source)
        for header in program.headers:
            shutil.copyfile(TEMPLATE_FOLDER / header, self.folder / "source" / header)
        for arch in self.export.archs:
            (self.folder / "cubin" / arch / f"{name}.cubin").write_bytes(self.cache.compiled(program, arch))
        own = {label: self._plan_array(array) for label, array in program.plan().items()}
        own |= {label: f"scratch_{name}_{label}" for label, _ in program.scratch}
        self.scratch_bytes |= {own[label]: size_bytes for label, size_bytes in program.scratch}
        return {
            "kind": "kernel",
            "name": name,
            "entry": program.entry,
            "grid": list(program.grid),
            "block": list(program.block),
            "shared_bytes": program.shared_bytes,
            "overlaps": program.overlaps,
            "arguments": [own.get(argument, argument) for argument in program.arguments],
        }

    def _plan_array(self, array: PlanArray) -> str:
        """Store `array` once by content; its key in the manifest."""
        key = f"plan_{hashlib.sha256(repr((array.dtype, array.shape)).encode() + array.tobytes()).hexdigest()[:12]}"
        if key not in self.plan_files:
            self.plan_files[key] = f"plan/{key}.npy"
            np.save(self.folder / self.plan_files[key], array)
        return key

    def _algorithm(self, choice: Choice) -> dict[str, Any] | None:
        """The library's own descriptor of the algorithm that was measured, if it was."""
        trial = self.export.trials.get(choice)
        return trial.detail.get("algorithm") if trial else None

    def _copy_payload(self, library: bool) -> None:
        for name in PAYLOAD:
            (self.folder / f"{name.rpartition('.')[2]}.py").write_text(_module_text(name))
        if library:
            (self.folder / LIBRARY_FOLDER).mkdir()
            (self.folder / LIBRARY_FOLDER / "__init__.py").write_text(
                '"""Library calls, as atoffer_rl makes them."""\n'
            )
            for name in LIBRARY_MODULES:
                text = _module_text(name)
                text = text.replace("from atoffer_rl.kernels.", "from .").replace("from atoffer_rl.", "from .")
                (self.folder / LIBRARY_FOLDER / f"{name.rpartition('.')[2]}.py").write_text(text)

    def _tolerance(self) -> dict[str, Any]:
        forward = self.export.forward
        return {"rule": TOLERANCE_RULE, "error_budget": forward.error_budget if forward else None}

    def _measured(self) -> dict[str, Any]:
        taken = [self.export.trials[c] for c in self.export.scheme.choices if c in self.export.trials]
        forward = self.export.forward
        return {
            "segments": [trial.to_json() for trial in taken],
            "forward": forward.to_json() if forward else None,
            "device": self.export.device.to_json(),
        }

    def _checksums(self) -> dict[str, str]:
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _module_text(name: str) -> str:
    """The source of module `name`."""
    package, _, module = name.rpartition(".")
    return files(package).joinpath(f"{module}.py").read_text()


def _text_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
