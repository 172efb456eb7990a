"""Record files: what is kept, replaced and refused."""

import json
import os
import subprocess

import pytest

from atoffer_rl.bench.record import write_record
from atoffer_rl.bench.record_file import RecordFile, check_encoder_target, grid_rows, mha_rows
from atoffer_rl.errors import LogError
from tests.stores import SCHEME

MACHINE = {"device": "GPU", "uuid": "GPU-1", "driver": "1", "versions": {"torch": "2"}, "floor_gb_s": 3000.0}


def row(mask="strided:stride=8", batch=1, seq_len=64, speedup=2.0, heads=12):
    peers = {} if speedup is None else {"a": 2.0 * speedup, "b": 9.0 * speedup}
    return {
        "mask": mask,
        "batch": batch,
        "seq_len": seq_len,
        "heads": heads,
        "head_dim": 64,
        "dtype": "float16",
        "ours_source": "0123",
        "ours_us": 2.0,
        "peers": peers,
        "peer_errors": {"c": "refused"},
        "speedup": speedup,
        "bytes_floor_us": 1.0,
    }


def kept(path, machine=MACHINE, is_current=lambda row: True):
    return RecordFile(path, machine, is_current, lambda row: row["batch"])


def test_rows_are_on_disk_at_once_and_found_again(tmp_path):
    path = tmp_path / "deep" / "record.json"
    record = kept(path)
    record.add(row())
    assert json.loads(path.read_text()) == MACHINE | {"rows": [row()], "taken": json.loads(path.read_text())["taken"]}
    record.fail("some cell", "it died")
    assert json.loads(path.read_text())["failed"] == {"some cell": "it died"}
    again = kept(path)
    again.add(row(batch=8))
    again.add(row(batch=4))
    assert [found["batch"] for found in json.loads(path.read_text())["rows"]] == [1, 4, 8]


def test_rows_of_other_kernels_are_taken_again(tmp_path):
    path = tmp_path / "record.json"
    record = kept(path)
    record.add(row())
    record.add(row(batch=8))
    before = path.read_text()
    again = kept(path, is_current=lambda row: row["batch"] == 8)
    assert [found["batch"] for found in again.rows] == [8]
    assert path.read_text() == before
    again.fail("some cell", "it died")
    assert json.loads(path.read_text())["rows"] == [row(), row(batch=8)]
    again.add(row(speedup=9.0))
    assert json.loads(path.read_text())["rows"] == [row(speedup=9.0), row(batch=8)]


@pytest.mark.parametrize("field", ["device", "uuid", "driver", "versions"])
def test_another_machines_record_is_refused_and_kept(tmp_path, field):
    path = tmp_path / "record.json"
    kept(path).add(row())
    before = path.read_text()
    with pytest.raises(LogError, match=f"another {field}"):
        kept(path, MACHINE | {field: "other"})
    assert path.read_text() == before


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": 1}', '{"rows": []}', "\u00ff"])
def test_what_is_no_record_is_refused(tmp_path, text):
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(LogError, match="not a record"):
        kept(path)


@pytest.mark.parametrize(
    "damage",
    [
        {"mask": []},
        {"mask": 1},
        {"dtype": {}},
        {"ours_us": "fast"},
        {"peers": [1.0]},
        {"peers": {"a": None}},
        {"speedup": 0},
        {"bytes_floor_us": 0},
    ],
)
def test_a_damaged_row_is_refused_and_kept(tmp_path, damage):
    path = tmp_path / "record.json"
    path.write_text(json.dumps(MACHINE | {"rows": [row() | damage]}))
    before = path.read_text()
    with pytest.raises(LogError, match="not a record"):
        kept(path)
    assert path.read_text() == before


def test_rows_of_a_grid_are_told_from_others():
    rows = [row(), row(batch=8, seq_len=128, mask="strided:stride=11"), row(heads=3), row(seq_len=65)]
    assert grid_rows("paper", rows) == (rows[:2], 40)
    assert grid_rows("small", rows) == ([], 8)


def test_what_has_two_meanings_is_refused_and_kept(tmp_path):
    path = tmp_path / "record.json"
    kept(path).add(row())
    path.write_text(text := path.read_text().replace('"rows":', '"rows": [], "rows":'))
    with pytest.raises(LogError, match="not a record of bench mha"):
        kept(path)
    assert path.read_text() == text


def test_an_encoders_record_is_refused_and_kept(tmp_path):
    path = tmp_path / "record.json"
    encoders = {name: value for name, value in row().items() if name != "ours_source"} | {"ours_scheme": {}}
    path.write_text(json.dumps(MACHINE | {"rows": [encoders]}))
    with pytest.raises(LogError, match="not a record of bench mha"):
        kept(path)
    assert json.loads(path.read_text())["rows"] == [encoders]


@pytest.mark.parametrize("rows", [1, {"a": 1}, [1], [[]], [{}], [None]])
def test_what_are_no_rows_is_refused(tmp_path, rows):
    path = tmp_path / "record.json"
    path.write_text(json.dumps(MACHINE | {"rows": rows}))
    with pytest.raises(LogError, match="not a record"):
        kept(path)


def encoder_row():
    return {name: value for name, value in row().items() if name != "ours_source"} | {"ours_scheme": SCHEME.to_json()}


def test_an_encoders_record_replaces_another(tmp_path):
    path = tmp_path / "record.json"
    check_encoder_target(path)
    write_record(path, MACHINE | {"rows": [encoder_row()]})
    check_encoder_target(path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"rows": []}', *(json.dumps(MACHINE | {"rows": rows}) for rows in ([], 1, [row()]))]
)
def test_what_is_no_encoders_record_is_refused_and_kept(tmp_path, text):
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(LogError, match="not a record of bench encoder: name another file"):
        check_encoder_target(path)
    assert path.read_text() == text


def test_a_pipe_is_written_once_and_never_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    check_encoder_target(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE) as reader:
        record = kept(tmp_path / "pipe")
        record.add(row())
        record.add(row(batch=8))
        record.finish()
        assert json.loads(reader.communicate(timeout=30)[0])["rows"] == [row(), row(batch=8)]


def test_without_a_file_rows_are_kept_in_memory():
    record = kept(None)
    record.add(row())
    assert record.rows == [row()]


def test_a_file_that_cannot_be_written_is_told_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="cannot write"):
        kept(tmp_path / "file" / "record.json")


def test_a_records_rows_are_read_by_others(tmp_path):
    path = tmp_path / "record.json"
    kept(path).add(row())
    assert mha_rows(path) == [row()]


@pytest.mark.parametrize(("text", "reason"), [(None, "there is no record"), ("{}", "is not a record")])
def test_what_has_no_rows_is_told(tmp_path, text, reason):
    path = tmp_path / "record.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(LogError, match=reason):
        mha_rows(path)
