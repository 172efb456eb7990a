"""Runs an exported encoder: generated kernels, loaded with CuPy, on anything that speaks DLPack.

    from runtime import Encoder

    encoder = Encoder.load("path/of/this/folder")
    y = encoder.forward(x, weights)          # weights: one mapping a layer, see Encoder.weight_shapes

An encoder of padded sequences (`Encoder.needs_lengths`) takes `lengths=` besides, (batch,) int32 on the GPU, read when
its kernels run. Of its result, rows within a sequence's length are meant; the others hold anything.

An encoder of packed sequences (`Encoder.packed`) takes `offsets=` too, likewise (batch,) int32: the row of x at which
each sequence begins, of batch * seq_len rows. The offsets are sums of the lengths before: cu_seqlens but for its end.

From a shell, `python runtime.py verify` checks and times it on this GPU and settles which scheme is used.
"""

import argparse
import ctypes
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, BinaryIO

MANIFEST = "manifest.json"
VERIFIED = "verified.json"
VERIFYING = ".verified.json.partial"
FORMAT = 2
BEST, SAFE = "best", "safe"
MOST_MANIFEST_BYTES, MOST_FILE_BYTES = 2**26, 2**32
_CUDA_DEVICES = (2, 13)
_ALIGNMENT_BYTES = 16
"""Of the widest access of a kernel."""
_DTYPES = {(0, 32): "int32", (2, 32): "float32", (2, 16): "float16", (4, 16): "bfloat16"}


class ExportError(Exception):
    """The folder is damaged, or cannot be used here; the message is one line."""


def missing_cupy(error: ImportError) -> ExportError:
    """What to do where `error` says that CuPy is not here."""
    return ExportError(f"needs CuPy: pip install cupy-cuda13x ({' '.join(str(error).split())})")


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


@dataclass(frozen=True)
class DeviceMemory:
    """Memory behind a DLPack object: its address, and the objects that keep it alive."""

    pointer: int
    shape: tuple[int, ...]
    dtype: str
    owner: Any

    @classmethod
    def of(cls, name: str, value: Any, shape: Sequence[int], dtype: str) -> "DeviceMemory":
        """The memory of `value`, or `value` itself if it is such memory.

        Args:
            name: What to call it in errors.
            value: Any object with `__dlpack__`: a contiguous CUDA array that begins at a multiple of 16 bytes.
            shape: Expected shape.
            dtype: Expected format.

        Raises:
            ExportError: If it is something else.
        """
        if isinstance(value, cls):
            return value
        if not hasattr(value, "__dlpack__"):
            raise ExportError(f"{name} does not speak DLPack: pass a CUDA array of torch, CuPy or JAX")
        if value.__dlpack_device__()[0] not in _CUDA_DEVICES:
            raise ExportError(f"{name} is not on a GPU: move it there first")
        # -1: the caller's stream is the one it is used on, and a wait could not be captured.
        capsule = value.__dlpack__(stream=-1)
        get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
        get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        tensor = _DLTensor.from_address(get_pointer(capsule, b"dltensor"))
        found = tuple(tensor.shape[i] for i in range(tensor.ndim))
        kind = _DTYPES.get((tensor.dtype.code, tensor.dtype.bits), "another format")
        if found != tuple(shape) or kind != dtype:
            raise ExportError(f"{name} is {kind} of shape {found}; it must be {dtype} of shape {tuple(shape)}")
        strides = [tensor.strides[i] for i in range(tensor.ndim)] if tensor.strides else None
        if strides is not None and strides != _row_major(found):
            raise ExportError(f"{name} is not contiguous: pass a contiguous copy")
        pointer = (tensor.data or 0) + tensor.byte_offset
        if kind != "int32" and pointer % _ALIGNMENT_BYTES:  # lengths and offsets are read one by one
            raise ExportError(f"{name} does not begin at a multiple of {_ALIGNMENT_BYTES} bytes: pass a copy")
        return cls(pointer, found, kind, (value, capsule))


def _row_major(shape: Sequence[int]) -> list[int]:
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    return strides[: len(shape)]


@dataclass(frozen=True)
class _Kernel:
    entry: str
    function: Any  # CuPy's, which keeps the code loaded
    call: Any
    arguments: tuple[str, ...]

    def launch(self, pointers: Mapping[str, int], stream: int) -> None:
        if refused := self.call([pointers[name] for name in self.arguments], stream):
            raise ExportError(f"cannot launch {self.entry}: {refused}")


@dataclass(frozen=True)
class _LibraryCall:
    call: Any
    refusal: type[Exception]

    def launch(self, pointers: Mapping[str, int], stream: int) -> None:
        try:
            self.call.launch(pointers, stream)
        except self.refusal as error:
            raise ExportError(f"a library call was refused: {error}") from error


class Encoder:
    """An exported encoder on the current GPU.

    Activations lie in memory of its own, and library calls of a device share a workspace: what is enqueued on several
    streams must not run at the same time.

    Attributes:
        manifest: What `manifest.json` says.
        scheme: `best`, or `safe` where `verify` found the best wrong or slower.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], scheme: str) -> None:
        import cupy

        self.folder, self.manifest, self.scheme = folder, manifest, scheme
        chosen = manifest["schemes"][scheme]
        self._arena = cupy.cuda.alloc(max(chosen["peak_bytes"], 1))
        self._own = {name: cupy.asarray(_load_plan(folder / file)) for name, file in manifest["plan"].items()}
        self._own |= {name: cupy.zeros(size, "uint8") for name, size in manifest["scratch_bytes"].items()}
        self._segments = [self._segment(segment) for segment in chosen["segments"]]
        self._buffers, self._peak = chosen["buffers"], chosen["peak_bytes"]

    @classmethod
    def load(cls, folder: str | Path, scheme: str | None = None) -> "Encoder":
        """The encoder in `folder`, its checksums proved.

        Args:
            folder: An export.
            scheme: `best` or `safe`; by default what `verify` settled on, or the best.

        Raises:
            ExportError: If a file is missing or altered, or this GPU has no cubin.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        try:
            import cupy

            cupy.cuda.runtime.getDeviceCount()
        except ImportError as error:
            raise missing_cupy(error) from error
        except Exception as error:  # whatever CuPy makes of a missing driver or GPU
            raise ExportError(f"needs CuPy and a CUDA GPU: {error}") from error
        return cls(folder, manifest, scheme or settled_scheme(folder))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of x and y: (batch, seq_len, heads * head_dim)."""
        return tuple(self.manifest["tensors"]["x"])

    @property
    def dtype(self) -> str:
        """Format of every array passed in or out."""
        return str(self.manifest["workload"]["dtype"])

    @property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each weight of a layer; products are (out_features, in_features)."""
        return {name: tuple(self.manifest["tensors"][name]) for name in self.manifest["weights"]}

    @property
    def needs_lengths(self) -> bool:
        """Whether sequences may be shorter than `seq_len`, so that `forward` takes their lengths."""
        return self.manifest["lengths"] is not None

    @property
    def packed(self) -> bool:
        """Whether sequences lie one right after the other, so that `forward` takes the rows at which they begin."""
        return bool(self.manifest["packed"])

    def forward(
        self,
        x: Any,
        weights: Sequence[Mapping[str, Any]],
        out: Any = None,
        stream: int | None = None,
        lengths: Any = None,
        offsets: Any = None,
    ) -> Any:
        """The encoder's output for `x`.

        Args:
            x: (batch, seq_len, width) on the GPU, ready on the stream, as all other arrays.
            weights: One mapping a layer, from each name of `weight_shapes` to its array.
            out: Where the result goes; a new CuPy array where none is given.
            stream: Address of the CUDA stream to run on; by default CuPy's current one. May be capturing.
            lengths: (batch,) int32, tokens of each sequence, if `needs_lengths`. What is below 0 counts as 0, what is
                over `seq_len` as `seq_len`.
            offsets: (batch,) int32, row of each sequence's first token, if `packed`. They are believed: no sequence may
                reach into another, or beyond the last row.

        Returns:
            `out`, or the new array.

        Raises:
            ExportError: If an array has another shape, format or place than the manifest says.
        """
        import cupy

        queue = int(cupy.cuda.get_current_stream().ptr) if stream is None else stream
        layers = int(self.manifest["workload"]["layers"])
        if len(weights) != layers:
            raise ExportError(f"weights holds {len(weights)} layers; this encoder has {layers}")
        if out is None:
            out = self._new_output(cupy)
        source = DeviceMemory.of("x", x, self.input_shape, self.dtype)
        target = DeviceMemory.of("out", out, self.input_shape, self.dtype)
        sequences = self._sequences(lengths, offsets)
        for layer, named in enumerate(weights):
            pointers = self._layer_pointers(layer, layers, source, target) | sequences
            for name, shape in self.weight_shapes.items():
                if name not in named:
                    raise ExportError(f"weights of layer {layer} lack {name!r}")
                pointers[name] = DeviceMemory.of(name, named[name], shape, self.dtype).pointer
            for segment in self._segments:
                segment.launch(pointers, queue)
        return out

    def _sequences(self, lengths: Any, offsets: Any) -> dict[str, int]:
        """Addresses of lengths and offsets by name, of those that this encoder reads."""
        wanted = (("lengths", lengths, self.needs_lengths, "full"), ("offsets", offsets, self.packed, "unpacked"))
        found = {}
        for name, given, needed, otherwise in wanted:
            if not needed:
                if given is not None:
                    raise ExportError(f"this encoder was made for {otherwise} sequences: pass no {name}")
                continue
            if given is None:
                raise ExportError(f"this encoder needs {name}=: int32 of shape ({self.input_shape[0]},) on the GPU")
            found[name] = DeviceMemory.of(name, given, self.input_shape[:1], "int32").pointer
        return found

    def _new_output(self, cupy: Any) -> Any:
        if self.dtype == "bfloat16":
            raise ExportError("bfloat16 results need out=: pass an array of your framework")
        return cupy.empty(self.input_shape, self.dtype)

    def _layer_pointers(self, layer: int, layers: int, source: DeviceMemory, target: DeviceMemory) -> dict[str, int]:
        """Addresses of a layer's activations: even layers use the buffers as planned, odd ones their mirror image."""
        base = self._arena.ptr
        pointers = {name: array.data.ptr for name, array in self._own.items()}
        for name, buffer in self._buffers.items():
            offset, end = buffer["offset_bytes"], buffer["offset_bytes"] + buffer["size_bytes"]
            pointers[name] = base + (self._peak - end if layer % 2 else offset)
        if layer == 0:
            pointers["x"] = source.pointer
        if layer == layers - 1:
            pointers["y"] = target.pointer
        return pointers

    def _segment(self, segment: dict[str, Any]) -> _Kernel | _LibraryCall:
        if segment["kind"] == "library":
            return _load_library_call(_library(self.folder, self.manifest["checksum"]), segment)
        import cupy

        function = self._function(segment)
        driver, capability = _driver_launch(self.folder), int(cupy.cuda.Device().compute_capability)
        overlaps = segment["overlaps"] and capability >= driver.OVERLAPPING_CAPABILITY
        call = driver.DriverLaunch(
            function.kernel.ptr, segment["grid"], segment["block"], segment["shared_bytes"], overlaps
        )
        return _Kernel(segment["entry"], function, call, tuple(segment["arguments"]))

    def _function(self, segment: dict[str, Any]) -> Any:
        """The kernel's function, as CuPy loads it."""
        import cupy

        path, needed = self._cubin(segment["name"]), segment["shared_bytes"]
        try:
            function = cupy.RawModule(path=str(path)).get_function(segment["entry"])
            if needed > 48 * 1024:
                function.max_dynamic_shared_size_bytes = needed
        except (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError) as error:
            raise ExportError(f"{path} does not run on this GPU ({error}): export again with its own --arch") from error
        return function

    def _cubin(self, name: str) -> Path:
        import cupy

        major, minor = divmod(int(cupy.cuda.Device().compute_capability), 10)
        archs = self.manifest["archs"]
        if f"sm_{major}{minor}a" in archs:
            return self.folder / "cubin" / f"sm_{major}{minor}a" / f"{name}.cubin"
        # A cubin without the `a` also runs on later chips of the same major version.
        plain = [int(arch[3:]) for arch in archs if arch[3:].isdigit()]
        fitting = [number for number in plain if number // 10 == major and number % 10 <= minor]
        if not fitting:
            raise ExportError(f"no cubin for sm_{major}{minor}: export again with --arch sm_{major}{minor}")
        return self.folder / "cubin" / f"sm_{max(fitting)}" / f"{name}.cubin"


def _driver_launch(folder: Path) -> Any:
    """The module of that name, of this export whatever else may have its name."""
    return _module("driver_launch", folder / "driver_launch.py")


def _library(folder: Path, checksum: str) -> str:
    """The name that the package `atoffer_library` of this export has here: another export has one of its own."""
    name, home = f"atoffer_library_{checksum}", folder / "atoffer_library"
    if name not in sys.modules:
        sys.modules[name] = _module(name, home / "__init__.py", [str(home)])
    return name


def _module(name: str, path: Path, modules_in: list[str] | None = None) -> Any:
    """The module at `path`, a package's if its modules lie somewhere."""
    spec = spec_from_file_location(name, path, submodule_search_locations=modules_in)
    if spec is None or spec.loader is None:
        raise ExportError(f"{path} cannot be loaded: export again")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load_library_call(library: str, segment: dict[str, Any]) -> _LibraryCall:
    try:
        refusal = import_module(f"{library}.errors").AtofferError
        program = import_module(f"{library}.program")
        load_matmul = import_module(f"{library}.matmul_library").load_matmul
    except ImportError as error:
        raise ExportError(f"this scheme makes library calls: pip install nvmath-python ({error})") from error
    fields = {
        name: program.MatmulOperand(**value) if isinstance(value, dict) else value
        for name, value in segment["program"].items()
    }
    matmul = program.MatmulProgram(**fields | {"batch": tuple(fields["batch"])})
    try:
        return _LibraryCall(load_matmul(matmul, segment["algorithm"]), refusal)
    except refusal as error:
        raise ExportError(str(error)) from error


def _load_plan(path: Path) -> Any:
    import numpy as np

    return np.load(path, allow_pickle=False)


_NONE = type(None)
_KERNEL_FORM = {"kind": "kernel", "name": str, "entry": str, "grid": [int], "block": [int], "shared_bytes": int} | {
    "overlaps": bool,
    "arguments": [str],
}
_OPERAND_FORM = {"tensor": str, "transposed": bool} | dict.fromkeys(
    ("rows", "columns", "leading", "offset", "outer_stride", "inner_stride"), int
)
_LIBRARY_FORM = {
    "kind": "library",
    "program": dict.fromkeys(("a", "b", "result"), _OPERAND_FORM)
    | dict.fromkeys(("epilogue", "dtype", "result_dtype"), str)
    | {"addend": (_NONE, _OPERAND_FORM), "bias": (_NONE, str), "scale": float, "batch": [int], "algorithm": int},
    "algorithm": (_NONE, {"library": str, "algorithm": str}),
}
_SCHEME_FORM = {
    "segments": [(_KERNEL_FORM, _LIBRARY_FORM)],
    "buffers": {...: {"offset_bytes": int, "size_bytes": int}},
    "peak_bytes": int,
}
_MANIFEST_FORM = {
    "format": int,
    "workload": dict.fromkeys(("batch", "seq_len", "heads", "head_dim", "layers"), int)
    | {"dtype": str, "activation": str, "epsilon": float},
    "tensors": {...: [int]},
    "weights": [str],
    "mask": str,
    "lengths": (_NONE, {"shortest": [int], "longest": [int], "timed": [int]}),
    "packed": bool,
    "archs": [str],
    "plan": {...: str},
    "scratch_bytes": {...: int},
    "schemes": dict.fromkeys((BEST, SAFE), _SCHEME_FORM),
    "files": {...: str},
}
"""What is read of a manifest, as `_fits` compares it."""


def _fits(value: Any, form: Any) -> bool:
    """Whether `value`, read from JSON, has a form.

    A form is a type, a text, alternatives (a, b), a list's [items], an object's fields {name: form} or all that is in
    it {...: form}.
    """
    if isinstance(form, tuple):
        return any(_fits(value, alternative) for alternative in form)
    if isinstance(form, list):
        return isinstance(value, list) and all(_fits(item, form[0]) for item in value)
    if isinstance(form, dict) and isinstance(value, dict):
        forms = dict.fromkeys(value, form[...]) if ... in form else form
        return all(name in value and _fits(value[name], forms[name]) for name in forms)
    return value == form if isinstance(form, str) else type(value) is form


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of `folder`, after its own and every file's checksum were proved.

    Raises:
        ExportError: Naming the first file that is missing or altered.
    """
    path = folder / MANIFEST
    try:
        with _open(path, MOST_MANIFEST_BYTES) as file:
            manifest: dict[str, Any] = json.load(file)
        found, whole = manifest["format"], manifest["checksum"] == manifest_checksum(manifest)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ExportError(f"{path} is missing or damaged: export again") from error
    if type(found) is int and found != FORMAT:
        raise ExportError(f"{path} has format {found}; this runtime reads {FORMAT}")
    if not whole:
        raise ExportError(f"{path} is altered: export again")
    if not _fits(manifest, _MANIFEST_FORM) or not _read_files(manifest) <= manifest["files"].keys():
        raise ExportError(f"{path} is damaged: export again")
    for name, checksum in manifest["files"].items():
        if _file_checksum(folder / name) != checksum:
            raise ExportError(f"{folder / name} is missing or altered: export again")
    return manifest


def _read_files(manifest: dict[str, Any]) -> set[str]:
    """The files that are read as the manifest says."""
    segments = [segment for name in (BEST, SAFE) for segment in manifest["schemes"][name]["segments"]]
    kernels = {segment["name"] for segment in segments if segment["kind"] == "kernel"}
    cubins = {f"cubin/{arch}/{name}.cubin" for arch in manifest["archs"] for name in kernels}
    return {manifest["mask"], *manifest["plan"].values(), *cubins}


def _open(path: Path, most_bytes: int) -> BinaryIO:
    """`path`, if it is a regular file of up to `most_bytes`: one could read a pipe or device for ever."""
    if not path.is_file() or path.stat().st_size > most_bytes:
        raise OSError(f"{path} is no file of an export")
    return path.open("rb")


def _file_checksum(path: Path) -> str | None:
    """None where there is no file to read."""
    digest = hashlib.sha256()
    try:
        with _open(path, MOST_FILE_BYTES) as file:
            while piece := file.read(2**20):
                digest.update(piece)
    except (OSError, ValueError):
        return None
    return digest.hexdigest()


def manifest_checksum(manifest: Mapping[str, Any]) -> str:
    """Of all that a manifest says, but for the checksum in it."""
    said = {name: value for name, value in manifest.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def settled_scheme(folder: Path) -> str:
    """The scheme that `verify` settled on; the best where it has not run.

    Raises:
        ExportError: If what it wrote is damaged, or it found both schemes wrong.
    """
    path = folder / VERIFIED
    if not path.exists():
        return BEST
    try:
        with _open(path, MOST_MANIFEST_BYTES) as file:
            verified = json.load(file)
        scheme, usable = verified["scheme"], verified["usable"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        scheme = usable = None
    if scheme not in (BEST, SAFE) or type(usable) is not bool:
        raise ExportError(f"{path} is damaged: verify again")
    if not usable:
        raise ExportError(f"{path} says that both schemes are wrong on its GPU: verify again here, or export again")
    return str(scheme)


def main() -> int:
    """`python runtime.py verify`: check and time the export here, and settle which scheme is used."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("action", choices=["verify"])
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    folder = Path(__file__).parent
    try:
        read_manifest(folder)  # before what lies beside it is run
        try:
            from verification import verify  # type: ignore[import-not-found]
        except ImportError as error:
            raise missing_cupy(error) from error
        result = verify(folder)
    except ExportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except MemoryError:
        print("error: not enough GPU memory: free some, or export for a smaller batch", file=sys.stderr)
        return 1
    except RuntimeError as error:  # CuPy's, of a fault on the GPU
        print(f"error: the GPU failed, nothing was settled: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted; nothing was settled", file=sys.stderr)
        return 130
    print(json.dumps(result) if options.json else result["summary"])
    return 0 if result["usable"] else 1


if __name__ == "__main__":
    # Siblings import this module by name: they must see these classes, not a second copy of them.
    sys.modules["runtime"] = sys.modules["__main__"]
    sys.exit(main())
