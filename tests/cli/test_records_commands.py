"""`atoffer record`, `records` and `doctor` where there is no GPU."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from atoffer_rl.cli import doctor
from atoffer_rl.errors import StoreError
from atoffer_rl.kernels import machine, recording
from atoffer_rl.kernels.measurers import open as open_measurers
from atoffer_rl.records import load_table, save_table
from atoffer_rl.shortest_path import best_schemes
from atoffer_rl.store import Store
from atoffer_rl.table_summary import latencies
from atoffer_rl.workload import Workload
from tests.stores import overwrite, segment_trial, store_of_200
from tests.synthetic import synthetic_table, with_an_illegal_choice, with_forwards

WORKLOAD = Workload(batch=2, seq_len=32, heads=2, head_dim=32, ffn_dim=128, layers=2)


@pytest.fixture
def folder(tmp_path):
    table = synthetic_table(WORKLOAD)
    schemes = [scheme for _, scheme in best_schemes(latencies(table.segments(WORKLOAD)), 40)]
    save_table(with_forwards(table, WORKLOAD, schemes), tmp_path / "records" / "toy.jsonl.gz")
    return tmp_path / "records"


def test_list_shows_tables_and_the_store(atoffer, folder, tmp_path):
    with Store(tmp_path / "store.db") as store:
        store.add(segment_trial())
    shown = atoffer("records", "list", "--folder", folder, "--store", tmp_path / "store.db", "--json")
    value = json.loads(shown.out)
    assert value["tables"][0]["forwards"] == 40
    assert value["store"]["trials"] == {"segment ok": 1}
    text = atoffer("records", "list", "--folder", folder, "--store", tmp_path / "store.db").out
    assert "toy.jsonl.gz" in text
    shape = "--batch 2 --seq-len 32 --heads 2 --head-dim 32 --ffn-dim 128 --layers 2 --mask strided"
    assert f"  {shape}\n" in text
    assert "1 segment ok" in text


def test_check_tells_stale_sources(atoffer, folder):
    value = json.loads(atoffer("records", "check", "--folder", folder, "--json").out)
    assert value[0]["missing"] == 0
    assert sum(value[0]["changed"].values()) == len(synthetic_table(WORKLOAD).trials)
    assert value[0]["sums"]["forwards"] == 40
    assert "rank correlation" in atoffer("records", "check", "--folder", folder).out


def test_check_leaves_out_what_is_not_legal_any_more(atoffer, folder):
    table = with_an_illegal_choice(load_table(folder / "toy.jsonl.gz"))
    save_table(table, folder / "toy.jsonl.gz")
    value = json.loads(atoffer("records", "check", "--folder", folder, "--json").out)
    assert value[0]["sums"]["forwards"] == 40


def test_an_import_says_what_was_there_already(atoffer, tmp_path):
    with Store(tmp_path / "one.db") as store:
        store.add(segment_trial())
        store.export_jsonl(tmp_path / "t.jsonl")
        store.add(segment_trial(latency_us=4.0))
        store.export_jsonl(tmp_path / "more.jsonl")
    words = ("--store", tmp_path / "two.db")
    assert atoffer("records", "import", tmp_path / "t.jsonl", *words).out.endswith("two.db\n")
    outcome = atoffer("records", "import", tmp_path / "more.jsonl", *words)
    assert outcome.out == f"1 trials added to {tmp_path / 'two.db'}, 1 were there already\n"


def test_export_and_import(atoffer, tmp_path):
    with Store(tmp_path / "one.db") as store:
        store.add(segment_trial())
    assert "1 trials" in atoffer("records", "export", tmp_path / "t.jsonl", "--store", tmp_path / "one.db").out
    assert "1 trials" in atoffer("records", "import", tmp_path / "t.jsonl", "--store", tmp_path / "two.db").out
    with Store(tmp_path / "two.db") as store:
        assert list(store.trials()) == [segment_trial()]
    (tmp_path / "bad.jsonl").write_text("{")
    assert atoffer("records", "import", tmp_path / "bad.jsonl", "--store", tmp_path / "two.db").status == 1


@pytest.mark.parametrize("command", ["list", "export"])
def test_a_store_that_is_missing_is_not_made(atoffer, folder, tmp_path, command):
    (tmp_path / "backup.jsonl").write_text("precious")
    words = ["--folder", folder] if command == "list" else [tmp_path / "backup.jsonl"]
    outcome = atoffer("records", command, *words, "--store", tmp_path / "deep" / "typo.db")
    assert outcome.status == 1
    assert "there is no store" in outcome.err
    assert not (tmp_path / "deep").exists()
    assert (tmp_path / "backup.jsonl").read_text() == "precious"


def test_who_has_measured_nothing_has_no_store(atoffer, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(open_measurers, "default_store", lambda: tmp_path / "deep" / "trials.db")
    assert "empty" in atoffer("records", "list", "--folder", folder).out
    assert atoffer("records", "export", tmp_path / "a.jsonl").status == 1
    assert not (tmp_path / "deep").exists()


def test_a_store_is_not_exported_onto_itself(atoffer, tmp_path, monkeypatch):
    with Store(tmp_path / "self.db") as store:
        store.add(segment_trial())
    monkeypatch.chdir(tmp_path)
    assert "the store itself" in atoffer("records", "export", "self.db", "--store", tmp_path / "self.db").err
    assert "1 segment ok" in atoffer("records", "list", "--store", "self.db").out


def test_damaged_trials_can_be_left_out(atoffer, tmp_path):
    with Store(tmp_path / "one.db") as store:
        store.add(segment_trial())
        store._connection.execute("UPDATE trials SET trial = 'x'")
        store.add(segment_trial())
    words = "records", "export", tmp_path / "t.jsonl", "--store", tmp_path / "one.db"
    assert "--skip-damaged" in atoffer(*words).err
    assert not (tmp_path / "t.jsonl").exists()
    outcome = atoffer(*words, "--skip-damaged")
    assert (outcome.status, outcome.err) == (0, "1 damaged trials left out\n")
    assert len((tmp_path / "t.jsonl").read_text().splitlines()) == 1


def test_a_damaged_index_hides_no_trials(atoffer, tmp_path):
    path = tmp_path / "one.db"
    root, _ = store_of_200(path)
    overwrite(path, [root])
    words = "records", "export", tmp_path / "t.jsonl", "--store", path
    assert "--skip-damaged" in atoffer(*words).err
    assert "200 trials written" in atoffer(*words, "--skip-damaged").out


def test_an_import_that_fails_makes_no_store(atoffer, tmp_path):
    value = segment_trial().to_json()
    for line in ("{", json.dumps(value | {"latency_us": True}), json.dumps(value | {"compile_seconds": "1"})):
        (tmp_path / "bad.jsonl").write_text(line)
        outcome = atoffer("records", "import", tmp_path / "bad.jsonl", "--store", tmp_path / "deep" / "s.db")
        assert "line 1" in outcome.err
    assert not (tmp_path / "deep").exists()


def test_an_import_of_nothing_makes_no_store(atoffer, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    outcome = atoffer("records", "import", tmp_path / "empty.jsonl", "--store", tmp_path / "deep" / "s.db")
    assert outcome.status == 1
    assert "holds no trials" in outcome.err
    assert not (tmp_path / "deep").exists()


def test_a_folder_without_tables_is_said_to_hold_none(atoffer, tmp_path, monkeypatch):
    monkeypatch.setattr(open_measurers, "default_store", lambda: tmp_path / "trials.db")
    assert f"no recorded tables in {tmp_path}\n" in atoffer("records", "list", "--folder", tmp_path).out
    outcome = atoffer("records", "check", "--folder", tmp_path)
    assert outcome.status == 1
    assert f"no recorded tables in {tmp_path}: name a folder that holds some" in outcome.err


def test_a_damaged_table_is_one_line(atoffer, folder):
    (folder / "bad.jsonl.gz").write_bytes(b"no gzip")
    outcome = atoffer("records", "list", "--folder", folder)
    assert outcome.status == 1
    assert "bad.jsonl.gz" in outcome.err


def test_recording_needs_a_gpu(atoffer, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "gpu_count", lambda: 0)
    outcome = atoffer("record", "--store", tmp_path / "store.db")
    assert outcome.status == 1
    assert "NVIDIA GPU" in outcome.err


@pytest.mark.parametrize(("words", "shown"), [((), False), (("--progress",), True), (("--progress", "--json"), True)])
def test_recording_shows_its_bar_on_a_terminal_or_where_asked(atoffer, tmp_path, monkeypatch, words, shown):
    def record(*_, progress, **__):
        progress("segments", 1, 2)
        return recording.Recording(None, None, complete=False, measured=1)

    opened = SimpleNamespace(close=lambda: None), "measurer fake"
    monkeypatch.setattr(open_measurers, "open_cuda", lambda *_, **__: opened)
    monkeypatch.setattr(recording, "record_table", record)
    outcome = atoffer("record", "--store", tmp_path / "store.db", *words)
    assert outcome.status == 0
    assert ("segments" in outcome.err) is shown
    if "--json" in words:
        assert json.loads(outcome.out)["measured"] == 1
    else:
        assert f"(trials kept in {tmp_path / 'store.db'})" in outcome.out


def test_a_name_is_checked_before_measuring(atoffer, tmp_path, monkeypatch):
    opened = SimpleNamespace(close=lambda: None), "measurer fake"
    monkeypatch.setattr(open_measurers, "open_cuda", lambda *_, **__: opened)
    outcome = atoffer("record", "--store", tmp_path / "store.db", "--folder", tmp_path / "x", "--name", "a/../../b")
    assert outcome.status == 1
    assert "a table cannot be called 'a/../../b': choose a --name of 1 to 100 letters" in outcome.err
    assert not (tmp_path / "x").exists()


def test_workloads_are_read_from_a_file(atoffer, tmp_path, monkeypatch):
    from atoffer_rl.cli.record import read_workloads

    values = [WORKLOAD, replace(WORKLOAD, mask="causal")]
    (tmp_path / "w.json").write_text(json.dumps([value.to_json() for value in values]))
    assert read_workloads(tmp_path / "w.json") == values
    for text in ("[]", "{}", "[{}", '[{"batches": 3}]'):
        (tmp_path / "w.json").write_text(text)
        outcome = atoffer("record", "--workloads", tmp_path / "w.json")
        assert outcome.status == 1
        assert str(tmp_path / "w.json") in outcome.err


def test_a_list_of_workloads_leaves_no_room_for_another(atoffer, tmp_path):
    outcome = atoffer("record", "--workloads", tmp_path / "w.json", "--mask", "causal")
    assert outcome.status == 1
    assert "--workloads says what is recorded: leave out --mask" in outcome.err


def test_doctor_says_what_is_missing(atoffer, monkeypatch):
    monkeypatch.setattr(machine, "gpu_count", lambda: 0)
    findings = json.loads(atoffer("doctor", "--json").out)
    assert findings["compiling"].startswith("works")
    assert "an NVIDIA GPU" in findings["live"]
    printed = atoffer("doctor").out
    assert "compiling" in printed
    assert all(f"replay       {workload}\n" in printed for workload in findings["replay"] or ["none"])


def test_doctor_goes_on_where_the_shipped_table_is_damaged(atoffer, monkeypatch):
    def damaged():
        raise StoreError("the table is damaged: install the package again")

    monkeypatch.setattr(doctor, "recorded_workloads", damaged)
    outcome = atoffer("doctor", "--json")
    assert outcome.status == 1
    findings = json.loads(outcome.out)
    assert findings["replay"] == "fails: the table is damaged: install the package again"
    assert findings["compiling"].startswith("works")
