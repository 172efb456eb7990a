"""Files in place of a store that no version of it wrote: they are told from one, and hang nothing."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from atoffer_rl.errors import StoreError
from atoffer_rl.store import Store, read_jsonl
from tests.stores import full_store, one_line, salvaged, segment_trial

ENDLESS_VIEW = """
CREATE VIEW trials AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
SELECT i AS id, '' AS key, '' AS kind, '' AS status, '' AS trial FROM n
"""


def altered_schema(path: Path, schema: str) -> Path:
    """The store in `path` with another table of trials."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE trials RENAME TO old")
        connection.executescript(schema)
    return path


@pytest.mark.parametrize("salvage", [False, True])
@pytest.mark.parametrize(
    "schema",
    [
        ENDLESS_VIEW,
        "CREATE VIRTUAL TABLE trials USING fts5(id, trial)",
        "",
    ],
    ids=["endless view", "virtual table", "nothing"],
)
def test_what_is_no_table_is_not_read(tmp_path: Path, schema: str, salvage: bool) -> None:
    path = altered_schema(full_store(tmp_path / "s.db"), schema)
    with pytest.raises(StoreError, match="is no trial store, or is damaged") as error:
        Store(path, read_only=True, salvage=salvage)
    one_line(error)


def test_without_headers_of_tables_trials_can_be_salvaged(tmp_path: Path) -> None:
    path = altered_schema(full_store(tmp_path / "s.db"), "ALTER TABLE old RENAME TO trials; DROP TABLE tables")
    with pytest.raises(StoreError, match="is no trial store, or is damaged"):
        Store(path)
    assert salvaged(path) == ([5.0], 0)


@pytest.mark.parametrize("rowid", ["", "WITHOUT ROWID"])
def test_trials_whose_ids_are_text_can_be_salvaged(tmp_path: Path, rowid: str) -> None:
    columns = "id TEXT PRIMARY KEY, key TEXT, kind TEXT, status TEXT, trial TEXT"
    copy = "INSERT INTO trials SELECT 'number ' || id, key, kind, status, trial FROM old; DROP TABLE old"
    path = altered_schema(full_store(tmp_path / "s.db"), f"CREATE TABLE trials ({columns}) {rowid}; {copy}")
    assert salvaged(path) == ([] if rowid else [5.0], 0)
    with Store(path, read_only=True) as store:
        assert list(store.trials()) == [segment_trial()]


def test_a_pipe_or_device_is_no_store(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(StoreError, match="pipe or device, no store: choose another --store"):
            Store(path)
        with pytest.raises(StoreError, match="choose a regular file"):
            list(read_jsonl(path))


def test_an_import_of_more_than_can_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large.jsonl").touch()
    os.truncate(tmp_path / "large.jsonl", 2**32 + 1)
    with pytest.raises(StoreError, match="holds over 4294967296 bytes"):
        list(read_jsonl(tmp_path / "large.jsonl"))
    (tmp_path / "long.jsonl").write_text(" " * 2**23)
    with pytest.raises(StoreError, match="has a line of over"):
        list(read_jsonl(tmp_path / "long.jsonl"))
