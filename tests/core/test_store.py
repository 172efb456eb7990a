"""The trial store: what was added stays, and what is wrong is said in one line."""

import gzip
import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from atoffer_rl.errors import StoreError
from atoffer_rl.store import Store, read_jsonl
from atoffer_rl.trial import ForwardRequest, SegmentRequest, Status, Trial
from tests.core.test_whole_file import small_files
from tests.stores import CHOICE, MACHINE, SCHEME, WORKLOAD, full_store, one_line, segment_trial


def test_trials_return_as_they_were_added(tmp_path: Path) -> None:
    forward = Trial(f"workload={WORKLOAD.key}", None, SCHEME, "plain", Status.TIMEOUT, "too slow", machine=MACHINE)
    with Store(tmp_path / "deep" / "store.db") as store:
        store.add(segment_trial())
        store.add(forward)
    with Store(tmp_path / "deep" / "store.db") as store:
        assert list(store.trials()) == [segment_trial(), forward]
        assert store.find(SegmentRequest(WORKLOAD, CHOICE), MACHINE, "abc") == segment_trial()
        assert store.find(ForwardRequest(WORKLOAD, SCHEME), MACHINE, "") == forward


def test_find_tells_machines_sources_and_choices_apart(tmp_path: Path) -> None:
    request = SegmentRequest(WORKLOAD, CHOICE)
    with Store(tmp_path / "store.db") as store:
        store.add(segment_trial())
        assert store.find(request, replace(MACHINE, uuid="other"), "abc") is None
        assert store.find(request, replace(MACHINE, libraries="newer"), "abc") is None
        assert store.find(request, MACHINE, "changed") is None
        assert store.find(replace(request, workload=replace(WORKLOAD, ffn_dim=256)), MACHINE, "abc") is None
        assert store.find(replace(request, workload=replace(WORKLOAD, mask="causal")), MACHINE, "abc") is not None


def test_a_transient_failure_answers_nothing_and_is_kept(tmp_path: Path) -> None:
    request = SegmentRequest(WORKLOAD, CHOICE)
    failed = replace(segment_trial(), status=Status.LAUNCH_FAILED, latency_us=None, samples_us=())
    passing = replace(failed, detail={"transient": True})
    with Store(tmp_path / "store.db") as store:
        store.add(passing)
        assert store.find(request, MACHINE, "abc") is None
        for answer in (segment_trial(), failed):
            store.add(answer)
            store.add(passing)
            assert store.find(request, MACHINE, "abc") == answer
        assert list(store.trials()) == [passing, segment_trial(), passing, failed, passing]


def test_the_newest_trial_answers(tmp_path: Path) -> None:
    with Store(tmp_path / "store.db") as store:
        store.add(segment_trial(latency_us=5.0))
        store.add(segment_trial(latency_us=4.0))
        found = store.find(SegmentRequest(WORKLOAD, CHOICE), MACHINE, "abc")
        assert found is not None
        assert found.latency_us == 4.0
        assert len(list(store.trials())) == 2


def test_an_import_of_older_trials_answers_nothing(tmp_path: Path) -> None:
    request = SegmentRequest(WORKLOAD, CHOICE)
    old = replace(segment_trial(latency_us=5.0), taken="2026-01-01T00:00:00+00:00")
    new = replace(segment_trial(latency_us=4.0), taken="2026-02-01T00:00:00+00:00")
    with Store(tmp_path / "store.db") as store:
        store.add(new)
        assert store.add_all([old]) == 1
        assert store.find(request, MACHINE, "abc") == new
        pooled = replace(new, latency_us=4.5)
        store.add(pooled)
        assert store.find(request, MACHINE, "abc") == pooled


def test_trials_that_are_there_are_not_imported_again(tmp_path: Path) -> None:
    first, second = segment_trial(), segment_trial(latency_us=4.0)
    with Store(tmp_path / "store.db") as store:
        assert store.add_all([first, first]) == 1
        assert store.add_all([first, second]) == 1
        assert store.add_all([second, first]) == 0
        assert list(store.trials()) == [first, second]


def test_tables_keep_their_newest_header(tmp_path: Path) -> None:
    with Store(tmp_path / "store.db") as store:
        store.save_table("a", {"anchors": 1})
        store.save_table("b", {})
        store.save_table("a", {"anchors": 2})
        assert store.tables() == {"a": {"anchors": 2}, "b": {}}


def test_jsonl_out_and_in(tmp_path: Path) -> None:
    with Store(tmp_path / "one.db") as store:
        store.add(segment_trial())
        store.add(segment_trial(latency_us=4.0))
        assert store.export_jsonl(tmp_path / "trials.jsonl") == 2
    with Store(tmp_path / "two.db") as store:
        assert store.add_all(read_jsonl(tmp_path / "trials.jsonl")) == 2
        assert [trial.latency_us for trial in store.trials()] == [5.0, 4.0]


@pytest.mark.parametrize("line", ["{", "{}", "[]", '{"protocol": 1}', "\x00"])
def test_an_import_with_a_bad_line_adds_nothing(tmp_path: Path, line: str) -> None:
    with Store(tmp_path / "one.db") as store:
        store.add(segment_trial())
        store.export_jsonl(tmp_path / "trials.jsonl")
    with (tmp_path / "trials.jsonl").open("a") as file:
        file.write(line + "\n")
    with Store(tmp_path / "two.db") as store, pytest.raises(StoreError, match="line 2"):
        store.add_all(read_jsonl(tmp_path / "trials.jsonl"))
    with Store(tmp_path / "two.db") as store:
        assert not list(store.trials())


def test_trials_of_another_protocol_are_not_imported(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    path.write_text(json.dumps(replace(segment_trial(), protocol=99).to_json()))
    with pytest.raises(StoreError, match=r"protocol 99, .*nothing was added"):
        list(read_jsonl(path))


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_text("not a database, but long enough to have a header " * 100)
    with pytest.raises(StoreError) as error:
        Store(path)
    assert "damaged" in one_line(error)


def test_a_database_of_something_else(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "store.db")
    connection.execute("CREATE TABLE other (x)")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError) as error:
        Store(tmp_path / "store.db")
    assert "not a trial store" in one_line(error)


def test_a_store_of_another_protocol(tmp_path: Path) -> None:
    Store(tmp_path / "store.db").close()
    connection = sqlite3.connect(tmp_path / "store.db")
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(StoreError) as error:
        Store(tmp_path / "store.db")
    assert "protocol 7" in one_line(error)
    assert "or move it away" in one_line(error)


def test_a_locked_store(tmp_path: Path) -> None:
    Store(tmp_path / "store.db").close()
    holder = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError) as error:
        Store(tmp_path / "store.db", lock_seconds=0.1)
    holder.close()
    assert "locked" in one_line(error)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError) as error:
        Store(tmp_path / "file" / "store.db")
    assert "choose another" in one_line(error)


def test_a_path_that_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as error:
        Store(tmp_path)
    assert "cannot be written" in one_line(error)


def fill(store: Store) -> None:
    for _ in range(100):
        store.add(segment_trial())


def test_a_full_disk_keeps_what_was_added(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    store.add(segment_trial())
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(StoreError) as error:
        fill(store)
    assert "no space left" in one_line(error)
    kept = len(list(store.trials()))
    store.close()
    with Store(tmp_path / "store.db") as store:
        assert len(list(store.trials())) == kept >= 1
        store.add(segment_trial())


WRITER = """
import sys
from contextlib import closing
from tests.stores import segment_trial
from atoffer_rl.store import Store
store = Store(sys.argv[1])
for index in range(10_000):
    store.add(segment_trial(latency_us=index + 1.0))
    print(index, flush=True)
"""


def test_a_killed_writer_loses_nothing_that_was_committed(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", WRITER, str(tmp_path / "store.db")]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            if line.strip() == "40":
                break
        os.kill(writer.pid, signal.SIGKILL)
        reported = [line.strip() for line in writer.stdout if line.endswith("\n")]
    last = int(reported[-1]) if reported else 40
    with Store(tmp_path / "store.db") as store:
        found = [trial.latency_us for trial in store.trials()]
    assert found[: last + 1] == [index + 1.0 for index in range(last + 1)]


DEEP = "[" * 500 + "]" * 500
"""More deeply nested than what reads it minds, but not than what writes it."""


NO_TRIALS = ["x", "{}", "[]", "null", '{"choice": 3, "scheme": null}', "[" * 100_000]


@pytest.mark.parametrize("text", [*NO_TRIALS, "status", "latency", "detail", "max_error"])
def test_rows_that_are_no_trials(tmp_path: Path, text: str) -> None:
    if text in ("status", "latency"):
        text = json.dumps(segment_trial().to_json() | {"status": "crashed", f"{text}_us": 1.0})
    elif text == "detail":
        text = json.dumps(segment_trial().to_json() | {"detail": {"a": "DEEP"}}).replace('"DEEP"', DEEP)
    elif text == "max_error":
        text = json.dumps(segment_trial().to_json() | {"max_error": 10**400})
    path, lines = tmp_path / "store.db", tmp_path / "trials.jsonl"
    Store(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO trials (key, kind, status, trial) VALUES ('', 'segment', 'ok', ?)", (text,))
    lines.write_text(text + "\n")
    with Store(path) as store:
        with pytest.raises(StoreError, match="damaged") as error:
            list(store.trials())
        assert "\n" not in str(error.value)
        with pytest.raises(StoreError, match="line 1") as error:
            store.add_all(read_jsonl(lines))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["s.db", "s.db-wal", "./s.db", "../here/s.db", "link", "hard"])
def test_a_store_is_not_exported_onto_itself(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "here"
    path = full_store(folder / "s.db")
    (folder / "link").symlink_to("s.db")
    os.link(path, folder / "hard")
    with Store(path, read_only=True) as store, pytest.raises(StoreError, match="the store itself"):
        store.export_jsonl(f"{folder}/{name}")
    with Store(path) as store:
        assert list(store.trials()) == [segment_trial()]


def test_nothing_but_an_earlier_export_is_overwritten(tmp_path: Path) -> None:
    full_store(tmp_path / "other.db")
    (tmp_path / "table.jsonl.gz").write_bytes(gzip.compress(b"{}"))
    (tmp_path / "notes.txt").write_text("precious")
    (tmp_path / "record.json").write_text('{"rows": []}')
    (tmp_path / "empty").touch()
    with Store(full_store(tmp_path / "s.db")) as store:
        assert store.export_jsonl(tmp_path / "empty") == store.export_jsonl(tmp_path / "empty") == 1
        for name in ("other.db", "table.jsonl.gz", "notes.txt", "record.json"):
            before = (tmp_path / name).read_bytes()
            with pytest.raises(StoreError, match="choose another file"):
                store.export_jsonl(tmp_path / name)
            assert (tmp_path / name).read_bytes() == before


def test_an_export_that_fails_leaves_the_earlier_one(tmp_path: Path) -> None:
    path, backup = full_store(tmp_path / "s.db"), tmp_path / "backup.jsonl"
    backup.write_text(precious := json.dumps(segment_trial(latency_us=9.0).to_json()))
    Store(tmp_path / "empty.db").close()
    with Store(tmp_path / "empty.db") as store, pytest.raises(StoreError, match="no trials"):
        store.export_jsonl(backup)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO trials (key, kind, status, trial) VALUES ('', 'segment', 'ok', 3)")
    with Store(path) as store:
        with pytest.raises(StoreError, match="--skip-damaged"):
            store.export_jsonl(backup)
        with small_files(100), pytest.raises(StoreError, match="ulimit"):
            store.export_jsonl(backup, lambda error: None)
        assert backup.read_text() == precious
        skipped: list[StoreError] = []
        assert store.export_jsonl(backup, skipped.append) == len(skipped) == 1
    assert list(read_jsonl(backup)) == [segment_trial()]
    assert not list(tmp_path.glob("*.partial"))


def test_reading_makes_and_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store"):
        Store(tmp_path / "deep" / "s.db", read_only=True)
    assert not list(tmp_path.iterdir())
    path = full_store(tmp_path / "odd name?mode=x#%20.db")
    before = path.read_bytes()
    with Store(path, read_only=True) as store:
        assert len(list(store.trials())) == 1
        with pytest.raises(StoreError, match="cannot be written"):
            store.add(segment_trial())
    assert path.read_bytes() == before
    (tmp_path / "blank.db").touch()
    with pytest.raises(StoreError, match="holds nothing"):
        Store(tmp_path / "blank.db", read_only=True)


def test_a_store_that_may_only_be_read_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = full_store(tmp_path / "s.db")
    monkeypatch.setattr(Store, "_address", lambda store: f"{store.path.as_uri()}?mode=ro")
    with pytest.raises(StoreError, match="cannot be written"):
        Store(path)


def test_a_store_is_read_while_another_writes(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as writer:
        writer.add(segment_trial())
        writer._connection.execute("BEGIN IMMEDIATE")
        with Store(tmp_path / "s.db", read_only=True) as store:
            assert len(list(store.trials())) == 1
        writer._connection.execute("ROLLBACK")


@pytest.mark.parametrize("size_bytes", [0, 1024, 4096, 8192, 12288, 20480, 40960])
def test_a_store_whose_making_was_cut_short_is_made_again(tmp_path: Path, size_bytes: int) -> None:
    with small_files(size_bytes):
        try:
            Store(tmp_path / "s.db").close()
        except StoreError as error:
            complaint = str(error)
        else:
            complaint = "free some space"
    assert "free some space" in complaint
    assert "damaged" not in complaint
    with Store(tmp_path / "s.db") as store:
        store.add(segment_trial())


def test_a_file_with_a_header_alone_is_made_a_store(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "s.db")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    assert (tmp_path / "s.db").stat().st_size
    full_store(tmp_path / "s.db")


def test_a_commit_that_fails_is_no_damage_and_undone(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        store.add(segment_trial())
        with small_files(4096), pytest.raises(StoreError, match="free some space") as error:
            fill(store)
        assert "everything measured so far is kept" in one_line(error)
        kept = len(list(store.trials()))
        store.add(segment_trial())
        assert len(list(store.trials())) == kept + 1


@pytest.mark.parametrize("header", ["{", b"x", 3, f'{{"a": {DEEP}}}'])
def test_headers_of_tables_that_are_none(tmp_path: Path, header: object) -> None:
    with Store(tmp_path / "s.db") as store:
        store._connection.execute("INSERT INTO tables VALUES ('t', ?)", (header,))
        with pytest.raises(StoreError, match="damaged"):
            store.tables()


@pytest.mark.parametrize("content", [b"\xff\xfe", b"SQLite format 3\0" * 9])
def test_a_file_that_is_no_export(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(StoreError) as error:
        list(read_jsonl(tmp_path / "a"))
    assert "0x" not in one_line(error)
