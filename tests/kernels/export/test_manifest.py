"""What the runtime of an export reads, and what it refuses to."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atoffer_rl.errors import ExportError, LaunchError
from atoffer_rl.kernels.export.payload import runtime
from atoffer_rl.kernels.export.writer import check_folder

LENGTHS = {"shortest": [3, 3], "longest": [24, 24], "timed": [19, 8]}
NOT_READ = {"made_with", "requires", "tolerance", "measured", "checksum", "scheme", "run", "template", "parameters"}
NO_VERDICT = ('{"scheme": "best"}', '{"scheme": "other", "usable": true}', '{"scheme": [], "usable": true}')
DAMAGED = (*NO_VERDICT, '{"scheme": ', "{}", "[]", "[" * 100_000, "9" * 5000)


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy of the small export."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def manifest_of(copy: Path) -> dict[str, Any]:
    """What its manifest says."""
    manifest: dict[str, Any] = json.loads((copy / "manifest.json").read_text())
    return manifest


def seal(copy: Path, manifest: dict[str, Any]) -> None:
    """Give `copy` another manifest, whose own checksum is right."""
    sealed = manifest | {"checksum": runtime.manifest_checksum(manifest)}
    (copy / "manifest.json").write_text(json.dumps(sealed))


def spoil(path: Path, kind: str) -> None:
    """Put something at `path` that is no file, or none that one would read."""
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "huge":
        path.touch()
        os.truncate(path, 2**40)


def fields(value: Any) -> Iterator[tuple[Any, str | int]]:
    """All that is read in `value`: what holds it, and its name there; of lists the first item."""
    names = [name for name in value if name not in NOT_READ] if isinstance(value, dict) else [0][: len(value)]
    for name in names:
        yield value, name
        if isinstance(value[name], dict | list):
            yield from fields(value[name])


def test_what_is_whole_is_read_and_what_is_not_is_named(copy: Path) -> None:
    assert runtime.read_manifest(copy)["format"] == runtime.FORMAT
    victim = next((copy / "cubin/sm_90a").iterdir())
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(runtime.ExportError, match=victim.name):
        runtime.read_manifest(copy)
    whole = manifest_of(copy)
    unsealed = {name: value for name, value in whole.items() if name != "checksum"}
    for content in ("{", "[]", "[" * 100_000, "9" * 5000, "{}", json.dumps(unsealed)):
        (copy / "manifest.json").write_text(content)
        with pytest.raises(runtime.ExportError, match=r"manifest\.json is missing or damaged: export again"):
            runtime.read_manifest(copy)


def test_another_format_is_told(copy: Path) -> None:
    seal(copy, {"format": 99})
    with pytest.raises(runtime.ExportError, match=f"has format 99; this runtime reads {runtime.FORMAT}"):
        runtime.read_manifest(copy)


def test_whatever_is_altered_in_a_manifest_is_noticed(copy: Path) -> None:
    whole = manifest_of(copy)
    for name in whole.keys() - {"format", "checksum"}:
        lacking = {field: value for field, value in whole.items() if field != name}
        for altered in (lacking, whole | {name: 5}):
            (copy / "manifest.json").write_text(json.dumps(altered))
            with pytest.raises(runtime.ExportError, match="altered"):
                runtime.read_manifest(copy)
    whole["schemes"]["best"]["segments"][0]["grid"] = [1, 1, 1]
    (copy / "manifest.json").write_text(json.dumps(whole))
    with pytest.raises(runtime.ExportError, match="altered"):
        runtime.read_manifest(copy)


def test_a_field_of_another_type_is_damage_in_a_sealed_manifest_too(copy: Path) -> None:
    whole = manifest_of(copy) | {"lengths": LENGTHS, "scratch_bytes": {"scratch": 4}}
    whole["workload"] = {name: value for name, value in whole["workload"].items() if name not in ("ffn_dim", "mask")}
    seal(copy, whole)
    assert runtime.read_manifest(copy)["lengths"] == LENGTHS
    of_kind = {segment["kind"]: segment for segment in whole["schemes"]["best"]["segments"]}
    assert set(of_kind) == {"kernel", "library"}
    for holder, name in [*fields(whole), *fields(of_kind["kernel"]), *fields(of_kind["library"])]:
        kept = holder[name]
        holder[name] = [{"other": [kept]}]
        seal(copy, whole)
        with pytest.raises(runtime.ExportError, match=r"manifest\.json is damaged: export again"):
            runtime.read_manifest(copy)
        holder[name] = kept


def test_a_scheme_that_is_not_read_may_be_anything(copy: Path) -> None:
    whole = manifest_of(copy)
    whole["schemes"]["fast"] = True
    seal(copy, whole)
    assert runtime.read_manifest(copy)["schemes"]["fast"]


def test_what_is_read_has_a_checksum(copy: Path) -> None:
    whole = manifest_of(copy)
    cubin = next(name for name in whole["files"] if name.startswith("cubin"))
    for read in ("plan/mask.npy", next(iter(whole["plan"].values())), cubin):
        seal(copy, whole | {"files": {name: text for name, text in whole["files"].items() if name != read}})
        with pytest.raises(runtime.ExportError, match=r"manifest\.json is damaged: export again"):
            runtime.read_manifest(copy)


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "device", "huge"])
def test_what_is_no_file_to_be_read_is_named(copy: Path, kind: str) -> None:
    whole = manifest_of(copy)
    seal(copy, whole | {"files": whole["files"] | {"plan/mask.npy": ""}})
    spoil(copy / "plan/mask.npy", kind)
    with pytest.raises(runtime.ExportError, match=r"mask\.npy is missing or altered"):
        runtime.read_manifest(copy)
    spoil(copy / "manifest.json", kind)
    with pytest.raises(runtime.ExportError, match=r"manifest\.json is missing or damaged"):
        runtime.read_manifest(copy)
    with pytest.raises(ExportError, match="is not an export, or a damaged one"):
        check_folder(copy)


def test_scheme_settled_by_verify_is_used(tmp_path: Path) -> None:
    assert runtime.settled_scheme(tmp_path) == "best"
    (tmp_path / "verified.json").write_text('{"scheme": "safe", "usable": true}')
    assert runtime.settled_scheme(tmp_path) == "safe"


def test_what_verify_found_wrong_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "verified.json").write_text('{"scheme": "safe", "usable": false}')
    with pytest.raises(runtime.ExportError, match=r"verified\.json says that both schemes are wrong"):
        runtime.settled_scheme(tmp_path)


def test_each_export_has_a_library_of_its_own(copy: Path, folder: Path) -> None:
    names = {home: runtime._library(home, str(place)) for place, home in enumerate((copy, folder))}
    for home, name in names.items():
        assert runtime._library(home, name.rpartition("_")[2]) == name
        assert import_module(f"{name}.matmul_library").__file__ == str(home / "atoffer_library/matmul_library.py")


def test_a_library_call_is_made_of_what_the_manifest_says(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = runtime.read_manifest(copy)
    library = runtime._library(copy, manifest["checksum"])
    loaded = []
    monkeypatch.setattr(
        import_module(f"{library}.matmul_library"), "load_matmul", lambda *given: loaded.append(given) or "call"
    )
    segments = [s for plan in manifest["schemes"].values() for s in plan["segments"] if s["kind"] == "library"]
    for segment in segments:
        assert runtime._load_library_call(library, segment).call == "call"
    for (program, algorithm), segment in zip(loaded, segments, strict=True):
        assert asdict(program) == segment["program"] | {"batch": tuple(segment["program"]["batch"])}
        assert algorithm == segment["algorithm"]


def test_a_library_call_that_is_refused_is_an_error_of_the_export() -> None:
    class Refusing:
        def launch(self, pointers: dict[str, int], stream: int) -> None:
            raise LaunchError("no algorithm")

    with pytest.raises(runtime.ExportError, match="a library call was refused: no algorithm"):
        runtime._LibraryCall(Refusing(), LaunchError).launch({}, 0)


def test_a_fault_on_the_gpu_is_one_line(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def verify(verified: Path) -> None:
        assert verified == copy
        raise RuntimeError("cudaErrorIllegalAddress:\nan illegal memory access")

    monkeypatch.setattr(runtime, "__file__", str(copy / "runtime.py"))
    monkeypatch.setattr("sys.argv", ["runtime.py", "verify"])
    monkeypatch.setitem(sys.modules, "verification", SimpleNamespace(verify=verify))
    assert runtime.main() == 1
    said = "error: the GPU failed, nothing was settled: cudaErrorIllegalAddress: an illegal memory access\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("content", [*DAMAGED, None])
def test_the_best_is_not_taken_where_what_was_settled_is_damaged(tmp_path: Path, content: str | None) -> None:
    verified = tmp_path / "verified.json"
    if content is None:
        spoil(verified, "pipe")
    else:
        verified.write_text(content)
    with pytest.raises(runtime.ExportError, match=r"verified\.json is damaged: verify again"):
        runtime.settled_scheme(tmp_path)
