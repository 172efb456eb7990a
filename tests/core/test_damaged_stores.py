"""Damaged stores: they are told from whole ones, and what can be read of them is."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from atoffer_rl.errors import StoreError
from atoffer_rl.store import Store
from tests.stores import full_store, one_line, overwrite, salvaged, segment_trial, store_of_200


def test_a_store_with_overwritten_pages(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with Store(path) as store:
        for index in range(200):
            store.add(segment_trial(latency_us=index + 1.0))
    content = bytearray(path.read_bytes())
    content[4096 : 4096 * 8] = b"\xff" * (4096 * 7)
    path.write_bytes(content)
    with pytest.raises(StoreError) as error, Store(path) as store:
        list(store.trials())
    assert "damaged" in one_line(error)


def test_with_a_damaged_index_every_trial_can_be_salvaged(tmp_path: Path) -> None:
    root, _ = store_of_200(tmp_path / "s.db")
    overwrite(tmp_path / "s.db", [root])
    with pytest.raises(StoreError, match="--skip-damaged") as error:
        Store(tmp_path / "s.db", read_only=True)
    assert "damaged" in one_line(error)
    assert salvaged(tmp_path / "s.db") == ([index + 1.0 for index in range(200)], 0)


@pytest.mark.parametrize("index_too", [False, True])
@pytest.mark.parametrize("places", [[5], [5, 20], [-1]])
def test_trials_beside_damaged_pages_can_be_salvaged(tmp_path: Path, places: list[int], index_too: bool) -> None:
    root, leaves = store_of_200(tmp_path / "s.db")
    overwrite(tmp_path / "s.db", [leaves[place] for place in places] + [root] * index_too)
    found, lost = salvaged(tmp_path / "s.db")
    assert len(found) > 150
    assert len(found) + lost == 200 or (index_too and places == [-1])


def test_of_a_store_that_was_cut_off_the_rest_can_be_salvaged(tmp_path: Path) -> None:
    store_of_200(tmp_path / "s.db")
    content = (tmp_path / "s.db").read_bytes()
    (tmp_path / "s.db").write_bytes(content[: len(content) * 3 // 4])
    with pytest.raises(StoreError, match="--skip-damaged"):
        Store(tmp_path / "s.db", read_only=True)
    found, _ = salvaged(tmp_path / "s.db")
    assert len(found) > 50


def test_trials_of_odd_numbers_can_be_salvaged(tmp_path: Path) -> None:
    store_of_200(tmp_path / "s.db")
    with closing(sqlite3.connect(tmp_path / "s.db")) as connection, connection:
        connection.execute("UPDATE trials SET id = -7 WHERE id = 3")
        connection.execute("UPDATE trials SET id = 4000000000000 WHERE id = 4")
    found, lost = salvaged(tmp_path / "s.db")
    assert (len(found), lost) == (200, 0)


def test_damaged_names_in_a_store(tmp_path: Path) -> None:
    store_of_200(tmp_path / "s.db")
    content = bytearray((tmp_path / "s.db").read_bytes())
    place = content.index(b"CREATE TABLE trials")
    content[place + 3 : place + 8] = b"\xbf" * 5
    (tmp_path / "s.db").write_bytes(bytes(content))
    with pytest.raises(StoreError, match="damaged"):
        Store(tmp_path / "s.db", read_only=True)


@pytest.mark.parametrize(("begin", "end"), [(0, 20480), (4096, 8192), (4096, 20480)])
def test_zeroed_pages_are_told_plainly(tmp_path: Path, begin: int, end: int) -> None:
    path = full_store(tmp_path / "s.db")
    content = bytearray(path.read_bytes())
    content[begin:end] = bytes(len(content[begin:end]))
    path.write_bytes(content)
    for read_only in (False, True):
        with pytest.raises(StoreError, match="move it away") as error:
            Store(path, read_only=read_only)
        assert "***" not in one_line(error)
