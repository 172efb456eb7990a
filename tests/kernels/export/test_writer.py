"""What an export holds, and that its runtime refuses what is damaged; no GPU."""

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from atoffer_rl.device import H100
from atoffer_rl.errors import CompileError, ExportError, SchemeError
from atoffer_rl.kernels.export.payload import runtime
from atoffer_rl.kernels.export.writer import Export, check_folder, write_export
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.liveness import plan_buffers
from atoffer_rl.scheme import Scheme
from atoffer_rl.workload import Workload
from tests.kernels.export.small import SMALL, fused


def test_every_file_is_in_the_manifest_with_its_checksum(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {"manifest.json"}
    assert set(manifest["files"]) == found
    for name, checksum in manifest["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == checksum


def test_manifest_describes_both_schemes(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert Scheme.from_json(manifest["schemes"]["best"]["scheme"]) == fused(SMALL)
    assert Scheme.from_json(manifest["schemes"]["safe"]["scheme"]) == LegalSpace(SMALL).unfused
    assert Workload.from_json(manifest["workload"]) == SMALL
    assert manifest["requires"] == ["cupy", "nvmath-python"]
    assert all(segment["kind"] == "kernel" for segment in manifest["schemes"]["safe"]["segments"])


def test_manifest_says_whether_lengths_are_needed(folder: Path, tmp_path: Path) -> None:
    assert json.loads((folder / "manifest.json").read_text())["lengths"] is None
    padded = replace(SMALL, lengths="uniform:shortest=3")
    made = write_export(Export(padded, LegalSpace(padded).unfused, H100, ("sm_90a",), {}), tmp_path / "padded")
    manifest = runtime.read_manifest(made)
    assert manifest["lengths"] == {"shortest": [3, 3], "longest": [24, 24], "timed": [19, 8]}
    assert manifest["tensors"]["lengths"] == [2]
    masked = [segment for segment in manifest["schemes"]["best"]["segments"] if segment["run"] == [3, 3]]
    assert "lengths" in masked[0]["arguments"]


def test_manifest_says_whether_sequences_are_packed(folder: Path, tmp_path: Path) -> None:
    assert json.loads((folder / "manifest.json").read_text())["packed"] is False
    packed = replace(SMALL, lengths="uniform:shortest=3", packed=True)
    made = write_export(Export(packed, LegalSpace(packed).unfused, H100, ("sm_90a",), {}), tmp_path / "packed")
    manifest = runtime.read_manifest(made)
    assert manifest["packed"] is True
    assert Workload.from_json(manifest["workload"]) == packed
    assert manifest["tensors"]["offsets"] == [2]
    for scheme in manifest["schemes"].values():
        reading = [segment["run"] for segment in scheme["segments"] if "offsets" in segment["arguments"]]
        assert reading == [segment["run"] for segment in scheme["segments"] if "lengths" in segment["arguments"]]
        assert reading == [[2, 6]]


class OnDevice:
    """An array that says it is on a GPU."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, stream: int) -> object:
        return self.array.__dlpack__()


def test_only_arrays_that_kernels_can_read_are_taken() -> None:
    room = np.zeros(64, np.float16)
    aligned = -room.ctypes.data % 16 // 2
    whole = room[aligned : aligned + 16].reshape(2, 8)
    memory = runtime.DeviceMemory.of("x", OnDevice(whole), (2, 8), "float16")
    assert memory.pointer == whole.ctypes.data
    assert runtime.DeviceMemory.of("x", memory, (2, 8), "float16") is memory
    wrong = [
        ([1.0], "does not speak DLPack"),
        (OnDevice(room[:16]), r"of shape \(16,\)"),
        (OnDevice(whole.astype(np.float32)), "is float32 of shape"),
        (OnDevice(whole.astype(np.int8)), "is another format of shape"),
        (OnDevice(np.asfortranarray(whole)), "is not contiguous"),
        (OnDevice(room[aligned + 1 : aligned + 17].reshape(2, 8)), "does not begin at a multiple of 16 bytes"),
    ]
    for value, message in wrong:
        with pytest.raises(runtime.ExportError, match=message):
            runtime.DeviceMemory.of("x", value, (2, 8), "float16")
    lengths = np.zeros(8, np.int32)[1:3]
    assert runtime.DeviceMemory.of("lengths", OnDevice(lengths), (2,), "int32").pointer == lengths.ctypes.data


def test_lengths_and_offsets_are_asked_for_where_they_are_needed() -> None:
    def sequences_of(padded: bool, packed: bool, lengths: object, offsets: object = None) -> dict[str, int]:
        encoder = SimpleNamespace(needs_lengths=padded, packed=packed, input_shape=(2, 24, 64))
        found: dict[str, int] = runtime.Encoder._sequences(encoder, lengths, offsets)  # type: ignore[arg-type]
        return found

    memory, other = (runtime.DeviceMemory(pointer, (2,), "int32", None) for pointer in (4096, 8192))
    assert sequences_of(False, False, None) == {}
    assert sequences_of(True, False, memory) == {"lengths": 4096}
    assert sequences_of(True, True, memory, other) == {"lengths": 4096, "offsets": 8192}
    wrong = [
        (False, False, memory, None, "full sequences: pass no lengths"),
        (True, False, None, None, "needs lengths=: int32 of shape"),
        (True, False, [1], None, "DLPack"),
        (True, False, memory, other, "unpacked sequences: pass no offsets"),
        (True, True, memory, None, "needs offsets=: int32 of shape"),
        (True, True, memory, [1], "offsets does not speak DLPack"),
    ]
    for *needed_and_given, says in wrong:
        with pytest.raises(runtime.ExportError, match=says):
            sequences_of(*needed_and_given)  # type: ignore[arg-type]


def test_every_argument_of_every_kernel_has_an_address(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    for scheme in manifest["schemes"].values():
        known = set(scheme["buffers"]) | set(manifest["weights"]) | set(manifest["plan"])
        for segment in scheme["segments"]:
            assert set(segment.get("arguments", ())) <= known
        ends = [buffer["offset_bytes"] + buffer["size_bytes"] for buffer in scheme["buffers"].values()]
        assert max(ends) == scheme["peak_bytes"]


def test_odd_layers_use_the_mirror_image_of_the_buffers(folder: Path) -> None:
    chosen = json.loads((folder / "manifest.json").read_text())["schemes"]["best"]
    encoder = runtime.Encoder.__new__(runtime.Encoder)  # without a GPU
    encoder._arena, encoder._own = SimpleNamespace(ptr=4096), {}
    encoder._buffers, encoder._peak = chosen["buffers"], chosen["peak_bytes"]
    even = plan_buffers(SMALL, fused(SMALL).runs)
    for layer, planned in ((2, even), (3, even.mirrored())):
        pointers = encoder._layer_pointers(layer, 6, SimpleNamespace(pointer=1), SimpleNamespace(pointer=2))
        assert pointers == {name: 4096 + offset for name, offset in planned.offsets_bytes.items()}


def test_mask_survives(folder: Path) -> None:
    packed = np.load(folder / "plan/mask.npy")
    keep = np.unpackbits(packed, axis=-1, count=SMALL.seq_len).astype(bool)
    assert (keep == SMALL.mask_spec.keep(SMALL.seq_len)).all()


def test_same_inputs_same_bytes(folder: Path, tmp_path: Path) -> None:
    again = write_export(Export(SMALL, fused(SMALL), H100, ("sm_90a",), {}), tmp_path / "again")
    assert (again / "manifest.json").read_bytes() == (folder / "manifest.json").read_bytes()


def test_an_earlier_export_is_replaced_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    write_export(Export(SMALL, LegalSpace(SMALL).unfused, H100, ("sm_90a",), {}), place)
    write_export(Export(SMALL, fused(SMALL), H100, ("sm_90a",), {}), place)
    assert json.loads((place / "manifest.json").read_text())["requires"] == ["cupy", "nvmath-python"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/precious.txt").write_text("x")
    with pytest.raises(ExportError, match="not an export"):
        write_export(Export(SMALL, fused(SMALL), H100, ("sm_90a",), {}), tmp_path / "mine")


@pytest.mark.parametrize("content", ["{}", "[]", "{", '{"files": 3}', '{"files": []}', "[" * 100_000, "9" * 5000])
def test_another_program_s_manifest_is_no_export(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(ExportError, match="choose another folder"):
        check_folder(tmp_path)
    assert (tmp_path / "precious.txt").read_text() == "x"


@pytest.mark.parametrize("format_", [None, runtime.FORMAT])
def test_a_manifest_that_names_a_user_s_files_is_no_export(tmp_path: Path, format_: int | None) -> None:
    manifest = {"format": format_, "made_with": "mine", "files": {"precious.txt": ""}}
    for value in (manifest, manifest | {"made_with": "atoffer_rl 9"}, manifest | {"made_with": 3}):
        (tmp_path / "manifest.json").write_text(json.dumps(value))
        (tmp_path / "precious.txt").write_text("x")
        with pytest.raises(ExportError, match="choose another folder"):
            check_folder(tmp_path)
    assert (tmp_path / "precious.txt").read_text() == "x"


def test_a_manifest_of_another_form_is_no_export(tmp_path: Path) -> None:
    for files in ([[1, 2]], [{}], ["precious.txt"], "precious.txt", 3, None):
        manifest = {"made_with": "atoffer_rl 9", "files": files}
        sealed = manifest | {"checksum": runtime.manifest_checksum(manifest)}
        (tmp_path / "manifest.json").write_text(json.dumps(sealed))
        (tmp_path / "precious.txt").touch()
        with pytest.raises(ExportError, match="choose another folder"):
            check_folder(tmp_path)


@pytest.mark.parametrize("kind", ["folder", "link", "dangling", "compiled"])
def test_whatever_a_user_put_into_an_export_is_told(folder: Path, tmp_path: Path, kind: str) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__/runtime.cpython-311.pyc").touch()
    check_folder(copy)
    if kind == "folder":
        (copy / "mine").mkdir()
    elif kind == "compiled":
        (copy / "__pycache__/mine.txt").touch()
    else:
        (copy / "mine").symlink_to(tmp_path if kind == "link" else "gone")
    with pytest.raises(ExportError, match=r"mine.* is not of the export"):
        check_folder(copy)


def test_an_earlier_export_stays_where_the_new_one_cannot_take_its_place(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    rename = Path.rename

    def refuse_new(path: Path, target: Path) -> Path:
        if path.name == "export":
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse_new)
    with pytest.raises(ExportError, match="free some space"):
        write_export(Export(SMALL, fused(SMALL), H100, ("sm_90a",), {}), copy)
    assert runtime.read_manifest(copy)
    assert list(tmp_path.iterdir()) == [copy]


@pytest.mark.parametrize("name", ["copy", "export"])
def test_an_interrupt_between_two_exports_leaves_one_of_them(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    rename = Path.rename

    def interrupted(path: Path, target: Path) -> None:
        rename(path, target)
        if path.name == name:
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_export(Export(SMALL, fused(SMALL), H100, ("sm_90a",), {}), copy)
    assert runtime.read_manifest(copy)
    assert list(tmp_path.iterdir()) == [copy]


def test_what_a_user_put_into_an_export_is_kept(folder: Path) -> None:
    check_folder(folder)
    for name in (runtime.VERIFIED, runtime.VERIFYING):
        (folder / name).write_text("{}")
    check_folder(folder)
    (folder / "notes.txt").write_text("x")
    try:
        with pytest.raises(ExportError, match=r"notes\.txt is not of the export"):
            check_folder(folder)
    finally:
        (folder / "notes.txt").unlink()
        (folder / runtime.VERIFIED).unlink()
        (folder / runtime.VERIFYING).unlink()


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/atoffer"])
def test_a_place_that_cannot_be_written_is_told_before_anything_is_made(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="choose another"):
        check_folder(tmp_path / place)


def test_an_arch_that_the_compiler_does_not_know_is_named(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="no 'sm_99': name an arch such as sm_90a"):
        write_export(Export(SMALL, LegalSpace(SMALL).unfused, H100, ("sm_99",), {}), tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_illegal_scheme_is_refused(tmp_path: Path) -> None:
    other = Workload(batch=2, seq_len=24, heads=2, head_dim=32, ffn_dim=64, layers=2, dtype="float32")
    with pytest.raises(SchemeError, match="not legal"):
        write_export(Export(other, fused(SMALL), H100, ("sm_90a",), {}), tmp_path / "x")


def test_export_imports_nothing_of_the_package(folder: Path) -> None:
    for path in folder.rglob("*.py"):
        lines = path.read_text().splitlines()
        assert not [line for line in lines if "import" in line and "atoffer_rl" in line], path


WITHOUT_CUPY = """
import runpy, sys
sys.modules["cupy"] = None
sys.path.insert(0, sys.argv[1])
sys.argv = sys.argv[2:]
runpy.run_path(sys.path[0] + "/" + sys.argv[0], run_name="__main__")
"""
PROGRAMS = (("runtime.py", "verify"), ("bench.py",))


@pytest.mark.parametrize("program", [*PROGRAMS, ("bench.py", "--json")])
def test_programs_end_with_one_line_where_cupy_is_missing(folder: Path, program: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CUPY, str(folder), *program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: needs CuPy: pip install cupy-cuda13x")
    assert done.stderr.count("\n") == 1


INTERRUPTED = """
import runpy, sys, types
class Pressed(types.ModuleType):
    def __getattr__(self, name):
        raise KeyboardInterrupt
sys.modules["verification"] = sys.modules["reference"] = Pressed("pressed")
sys.path.insert(0, sys.argv[1])
sys.argv = sys.argv[2:]
runpy.run_path(sys.path[0] + "/" + sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_end_with_one_line_where_they_are_interrupted(folder: Path, program: tuple[str, ...]) -> None:
    words = [sys.executable, "-c", INTERRUPTED, str(folder), *program]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr.startswith("error: interrupted")
    assert done.stderr.count("\n") == 1


def test_a_bench_of_no_replays_is_refused(folder: Path) -> None:
    words = [sys.executable, "-c", WITHOUT_CUPY, str(folder), "bench.py", "--replays", "0"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--replays must be at least 1" in done.stderr


def test_loading_says_where_cupy_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(runtime.ExportError, match="pip install cupy-cuda13x"):
        runtime.Encoder.load(folder)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", ["verification.py", "reference.py", "manifest.json", "plan/mask.npy"])
def test_programs_end_with_one_line_where_a_file_was_altered(
    tmp_path: Path, name: str, program: tuple[str, ...]
) -> None:
    copy = write_export(Export(SMALL, LegalSpace(SMALL).unfused, H100, ("sm_90a",), {}), tmp_path / "copy")
    (copy / name).write_bytes((copy / name).read_bytes()[:-30])
    done = subprocess.run(
        [sys.executable, str(copy / program[0]), *program[1:]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert name in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
