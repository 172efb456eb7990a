"""`atoffer verify`: nothing runs that is not as it was exported, and success means that it was verified."""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from atoffer_rl.kernels.export.payload.runtime import manifest_checksum

EXAMPLE = Path(__file__).parents[2] / "examples" / "bert-b16-s256-strided-standalone"


@pytest.fixture
def export(tmp_path):
    """A copy of the committed example."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "export", ignore=shutil.ignore_patterns("__pycache__")))


def with_runtime(export, text):
    """Give `export` the runtime `text`, and a manifest that says so."""
    (export / "runtime.py").write_text(text)
    manifest = json.loads((export / "manifest.json").read_text())
    manifest["files"]["runtime.py"] = hashlib.sha256(text.encode()).hexdigest()
    manifest["checksum"] = manifest_checksum(manifest)
    (export / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("kept_bytes", [None, 0, 1, 3000])
def test_a_runtime_that_was_altered_does_not_run(atoffer, export, monkeypatch, kept_bytes):
    monkeypatch.setattr(subprocess, "call", lambda command: pytest.fail(f"{command} was run"))
    script = export / "runtime.py"
    if kept_bytes is None:
        script.unlink()
    else:
        script.write_bytes(script.read_bytes()[:kept_bytes])
    outcome = atoffer("verify", export)
    assert outcome.status == 1
    assert "runtime.py is missing or altered: export again" in outcome.err


@pytest.mark.parametrize("name", ["verification.py", "manifest.json"])
def test_other_files_that_were_altered_are_named(atoffer, export, name):
    (export / name).write_text("")
    outcome = atoffer("verify", export)
    assert outcome.status == 1
    assert name in outcome.err


def test_what_is_no_export(atoffer, tmp_path):
    for place in (tmp_path, tmp_path / "gone"):
        assert "is not an export" in atoffer("verify", place).err


@pytest.mark.parametrize("files", [[[1, 2]], {"runtime.py": 3}, ["runtime.py"], None])
def test_a_manifest_of_another_form_is_damaged(atoffer, export, files):
    manifest = json.loads((export / "manifest.json").read_text()) | {"files": files}
    manifest["checksum"] = manifest_checksum(manifest)
    (export / "manifest.json").write_text(json.dumps(manifest))
    outcome = atoffer("verify", export)
    assert outcome.status == 1
    assert "manifest.json is damaged: export again" in outcome.err


def test_a_pipe_in_the_place_of_a_file_is_not_read(atoffer, export):
    (export / "bench.py").unlink()
    os.mkfifo(export / "bench.py")
    assert "bench.py is missing or altered: export again" in atoffer("verify", export).err


def test_a_runtime_that_verifies_nothing_is_no_success(atoffer, export):
    with_runtime(export, "")
    (export / "verified.json").write_text('{"scheme": "best"}')
    outcome = atoffer("verify", export)
    assert outcome.status == 1
    assert "verified nothing" in outcome.err


def test_a_runtime_that_dies_is_told(atoffer, export):
    with_runtime(export, "import os; os.kill(os.getpid(), 9)")
    assert "killed by signal 9" in atoffer("verify", export).err


SETTLES = "open(__file__.replace('runtime.py', 'verified.json'), 'w').write('{}')"


def test_what_the_runtime_settled_is_success(atoffer, export):
    with_runtime(export, SETTLES)
    assert atoffer("verify", export).status == 0


def test_an_export_whose_name_looks_like_an_option(atoffer, export, monkeypatch):
    with_runtime(export, SETTLES)
    export.rename(export.parent / "-export")
    monkeypatch.chdir(export.parent)
    assert atoffer("verify", "--", "-export").status == 0
