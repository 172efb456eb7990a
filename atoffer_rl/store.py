"""Where live trials are kept: an SQLite file in WAL mode, one writer, one commit a trial."""

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from atoffer_rl.errors import AtofferError, StoreError
from atoffer_rl.trial import PROTOCOL_VERSION, Answers, Machine, Request, Trial, request_key

APPLICATION_ID = 0x41744F66  # "AtOf": marks the file as a trial store
LOCK_SECONDS = 5.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS trials (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, kind TEXT NOT NULL, status TEXT NOT NULL, trial TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS trials_by_key ON trials (key);
CREATE TABLE IF NOT EXISTS tables (id TEXT PRIMARY KEY, header TEXT NOT NULL);
"""


def trial_key(
    answers: Answers,
    machine: Machine,
    source_hash: str,
    protocol: int = PROTOCOL_VERSION,
) -> str:
    """A hash of all that tells two measurements apart."""
    subject, choice, scheme, execution = answers
    parts = [protocol, subject, choice.to_json() if choice else None, scheme.to_json() if scheme else None, execution]
    parts += [vars(machine), source_hash]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class Store:
    """Trials on disk. What `add` returned from survives the death of the process.

    A choice measured again is kept beside its earlier trials; the newest answers.

    Args:
        path: The file; made, with its folders, if it is not there.
        lock_seconds: How long to wait for another writer.

    Raises:
        StoreError: If the file is damaged, locked, unwritable, no trial store, or of another protocol.
    """

    def __init__(self, path: str | Path, lock_seconds: float = LOCK_SECONDS) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot make the folder of store {self.path}: {error.strerror}; choose another"
            ) from error
        with self._explained():
            self._connection = sqlite3.connect(self.path, timeout=lock_seconds, isolation_level=None)
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        with self._explained():
            application, protocol = self._pragma("application_id"), self._pragma("user_version")
            if application == 0 and self._pragma("page_count") == 0:
                self._create()
            elif application != APPLICATION_ID:
                raise StoreError(f"{self.path} is not a trial store: choose another --store")
            elif protocol != PROTOCOL_VERSION:
                raise StoreError(
                    f"store {self.path} holds trials of protocol {protocol}, this version measures by protocol "
                    f"{PROTOCOL_VERSION}: choose another --store"
                )
            if (verdict := self._pragma("quick_check(1)")) != "ok":
                raise sqlite3.DatabaseError(str(verdict).splitlines()[0])
            self._pragma("journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            with self._transaction():
                pass  # finds out now whether the store can be written

    def _create(self) -> None:
        self._pragma("journal_mode = WAL")
        with self._transaction():
            for statement in filter(str.strip, _SCHEMA.split(";")):
                self._connection.execute(statement)
            self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._connection.execute(f"PRAGMA user_version = {PROTOCOL_VERSION}")

    def _pragma(self, text: str) -> Any:
        row = self._connection.execute(f"PRAGMA {text}").fetchone()
        return row[0] if row else None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(_explain(self.path, error)) from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def add(self, trial: Trial) -> None:
        """Keep `trial`; it is on disk when this returns.

        Raises:
            StoreError: If it cannot be written.
        """
        with self._explained(), self._transaction():
            self._insert(trial)

    def _insert(self, trial: Trial) -> None:
        key = trial_key(trial.answers, trial.machine, trial.source_hash, trial.protocol)
        row = (key, trial.kind, trial.status.value, json.dumps(trial.to_json()))
        self._connection.execute("INSERT INTO trials (key, kind, status, trial) VALUES (?, ?, ?, ?)", row)

    def find(self, request: Request, machine: Machine, source_hash: str) -> Trial | None:
        """The newest trial that answers `request` on `machine` for these sources, if any.

        Raises:
            StoreError: If the store cannot be read.
        """
        key = trial_key(request_key(request), machine, source_hash)
        with self._explained():
            query = "SELECT trial FROM trials WHERE key = ? ORDER BY id DESC LIMIT 1"
            row = self._connection.execute(query, (key,)).fetchone()
        return self._trial(row[0]) if row else None

    def trials(self) -> Iterator[Trial]:
        """Every trial, oldest first.

        Raises:
            StoreError: If the store cannot be read.
        """
        with self._explained():
            for (text,) in self._connection.execute("SELECT trial FROM trials ORDER BY id"):
                yield self._trial(text)

    def _trial(self, text: str) -> Trial:
        try:
            return Trial.from_json(json.loads(text))
        except (ValueError, RecursionError, AtofferError) as error:
            raise StoreError(f"store {self.path} is damaged ({error}): move it away, or import an export") from error

    def save_table(self, table: str, header: dict[str, Any]) -> None:
        """Keep the header of a table that is being recorded, in place of an earlier one.

        Raises:
            StoreError: If it cannot be written.
        """
        with self._explained(), self._transaction():
            query = "INSERT INTO tables VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET header = excluded.header"
            self._connection.execute(query, (table, json.dumps(header)))

    def tables(self) -> dict[str, dict[str, Any]]:
        """Headers of the tables that were recorded into this store, by identity, oldest first.

        Raises:
            StoreError: If the store cannot be read.
        """
        with self._explained():
            rows = self._connection.execute("SELECT id, header FROM tables ORDER BY rowid").fetchall()
        return {str(table): json.loads(header) for table, header in rows}

    def export_jsonl(self, path: str | Path) -> int:
        """Write every trial to `path`, one JSON object a line; says how many.

        Raises:
            StoreError: If the store cannot be read or the file cannot be written.
        """
        count = 0
        try:
            with Path(path).open("w") as file:
                for trial in self.trials():
                    file.write(json.dumps(trial.to_json()) + "\n")
                    count += 1
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from error
        return count

    def import_jsonl(self, path: str | Path) -> int:
        """Add the trials of `path`, all of them or none; says how many.

        Raises:
            StoreError: If a line is no trial of this protocol, or a file cannot be read or written.
        """
        trials = list(read_jsonl(path))
        with self._explained(), self._transaction():
            for trial in trials:
                self._insert(trial)
        return len(trials)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_jsonl(path: str | Path) -> Iterator[Trial]:
    """The trials that `Store.export_jsonl` wrote.

    Raises:
        StoreError: If the file cannot be read, or a line is no trial of this protocol.
    """
    try:
        with Path(path).open() as file:
            for number, line in enumerate(file, 1):
                yield _checked(path, number, line)
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"cannot read {path}: {error}") from error


def _checked(path: str | Path, number: int, line: str) -> Trial:
    try:
        trial = Trial.from_json(json.loads(line))
    except (ValueError, RecursionError, AtofferError) as error:
        raise StoreError(f"{path}, line {number}: {error}") from error
    if trial.protocol != PROTOCOL_VERSION:
        raise StoreError(f"{path}, line {number}: protocol {trial.protocol}, not {PROTOCOL_VERSION}")
    return trial


def _explain(path: Path, error: sqlite3.Error) -> str:
    """One line that says what to do about an SQLite error."""
    text = str(error)
    if "locked" in text or "busy" in text:
        return f"store {path} is locked by another process: wait for it, or choose another --store"
    if "full" in text:
        return f"no space left for store {path}: free some, everything measured so far is kept"
    if "readonly" in text or "unable to open" in text or "permission" in text:
        return f"store {path} cannot be written ({text}): choose another --store"
    return f"store {path} is damaged ({text}): move it away, or import an export with atoffer records import"
