"""Where live trials are kept: an SQLite file in WAL mode, one writer, one commit a trial."""

import hashlib
import io
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from atoffer_rl.errors import FileError, StoreError
from atoffer_rl.json_text import parse_json
from atoffer_rl.regular_file import LONGEST_LINE, bounded_lines, open_regular
from atoffer_rl.trial import PROTOCOL_VERSION, Answers, Machine, Request, Trial, request_key
from atoffer_rl.whole_file import is_stream, os_reason, real_path, whole_file

APPLICATION_ID = 0x41744F66  # "AtOf": marks the file as a trial store
LOCK_SECONDS = 5.0
SIDE_FILES = ("-wal", "-shm", "-journal")
LEAST_TRIAL_BYTES = 64
"""In the file; bounds how many trials a damaged one may claim."""
MOST_IMPORT_BYTES = 2**32
OnDamage: TypeAlias = Callable[[StoreError], None]
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

    A choice measured again is kept beside its earlier trials; the one taken last that is not transient answers.

    Args:
        path: The file; made, with its folders, if it is not there, unless the store is for reading only.
        lock_seconds: How long to wait for another writer.
        read_only: Change nothing; the file must be there.
        salvage: Open it even if it is damaged, to read what can be read.

    Raises:
        StoreError: If the file is damaged, locked, unwritable, no trial store, or of another protocol.
    """

    def __init__(
        self, path: str | Path, lock_seconds: float = LOCK_SECONDS, *, read_only: bool = False, salvage: bool = False
    ) -> None:
        self.path, self._read_only, self._salvage = Path(path), read_only, salvage
        if not read_only:
            self._make_folder()
            self._refuse_stream()
        elif not self.path.is_file():
            raise StoreError(f"there is no store {self.path}: choose another --store, or measure something first")
        with self._explained():
            self._connection = sqlite3.connect(self._address(), timeout=lock_seconds, isolation_level=None, uri=True)
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _address(self) -> str:
        """The file for SQLite; a path may hold what means something in an address, `as_uri` quotes it."""
        options = "mode=ro" if self._read_only else "mode=rwc"
        if self._read_only and not os.access(self.path.parent, os.W_OK) and not self._beside("-wal").exists():
            options += "&immutable=1"  # or SQLite would make files in a folder where it may not
        return f"{self.path.absolute().as_uri()}?{options}"

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _make_folder(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make the folder of store {self.path}: {os_reason(error)}") from error

    def _refuse_stream(self) -> None:
        with suppress(OSError):  # what cannot be looked at cannot be opened either, which tells why
            if is_stream(self.path) and not self.path.is_dir():
                raise StoreError(f"{self.path} is a pipe or device, no store: choose another --store")

    def _prepare(self) -> None:
        with self._explained():
            if self._salvage:
                self._connection.execute("PRAGMA writable_schema = ON")  # reads a file that is shorter than it says
            if self._is_blank():
                if self._read_only:
                    raise StoreError(f"store {self.path} was begun, but holds nothing: choose another --store")
                self._create()
            self._check_kind()
            if not self._salvage and self._pragma("quick_check(1)") != "ok":
                raise StoreError(_damaged(self.path))
            if not self._read_only:
                self._pragma("journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = FULL")
                with self._transaction():  # finds out now whether the store can be written, which BEGIN alone does not
                    self._connection.execute(f"PRAGMA user_version = {PROTOCOL_VERSION}")

    def _is_blank(self) -> bool:
        """Whether the file is new, or its making was cut short: its mark and tables come in one transaction."""
        marks = self._pragma("application_id"), self._pragma("user_version")
        entries = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        return marks == (0, 0) and entries == 0

    def _check_kind(self) -> None:
        if self._pragma("application_id") != APPLICATION_ID:
            raise StoreError(f"{self.path} is not a trial store: choose another --store")
        if (protocol := self._pragma("user_version")) != PROTOCOL_VERSION:
            raise StoreError(
                f"store {self.path} holds trials of protocol {protocol}, this version measures by protocol "
                f"{PROTOCOL_VERSION}: choose another --store, or move it away"
            )
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage"  # a view may go on for ever
        tables = {name for (name,) in self._connection.execute(query)}
        if not tables >= ({"trials"} if self._salvage else {"trials", "tables"}):
            raise StoreError(f"{self.path} is no trial store, or is damaged: choose another --store, or move it away")

    def _create(self) -> None:
        with self._transaction():
            if not self._is_blank():  # another process was faster
                return
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
        except UnicodeDecodeError as error:  # raised while sqlite3 words what is wrong with bytes that are no text
            raise StoreError(_damaged(self.path)) from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                with suppress(sqlite3.Error):  # what went wrong first is what is told
                    self._connection.execute("ROLLBACK")
            raise

    def add(self, trial: Trial) -> None:
        """Keep `trial`; it is on disk when this returns.

        Raises:
            StoreError: If it cannot be written.
        """
        with self._explained(), self._transaction():
            self._insert(trial)

    def _insert(self, trial: Trial) -> None:
        self._connection.execute("INSERT INTO trials (key, kind, status, trial) VALUES (?, ?, ?, ?)", _packed(trial))

    def _insert_new(self, trial: Trial) -> bool:
        """Insert `trial` unless it is there already; says whether it was not."""
        row = _packed(trial)
        query = "SELECT 1 FROM trials WHERE key = ? AND trial = ?"
        if self._connection.execute(query, (row[0], row[-1])).fetchone():
            return False
        self._insert(trial)
        return True

    def find(self, request: Request, machine: Machine, source_hash: str) -> Trial | None:
        """The trial taken last that answers `request` on `machine` for these sources and is not transient, if any.

        Of those taken at the same time the one added last answers.

        Raises:
            StoreError: If the store cannot be read.
        """
        key = trial_key(request_key(request), machine, source_hash)
        with self._explained():
            query = "SELECT trial FROM trials WHERE key = ? ORDER BY id DESC"
            trials = (self._trial(text) for (text,) in self._connection.execute(query, (key,)))
            answers = (trial for trial in trials if not trial.transient)
            return max(answers, key=lambda trial: trial.taken, default=None)

    def trials(self, on_damage: OnDamage | None = None) -> Iterator[Trial]:
        """Every trial, oldest first.

        Args:
            on_damage: Called for each trial that cannot be read, which is then left out; None raises instead.

        Raises:
            StoreError: If the store cannot be read.
        """
        if on_damage is not None:
            yield from self._readable_trials(on_damage)
            return
        with self._explained():
            for (text,) in self._connection.execute("SELECT trial FROM trials ORDER BY id"):
                yield self._trial(text)

    def _readable_trials(self, on_damage: OnDamage) -> Iterator[Trial]:
        """One by one, so that a damaged page hides no others."""
        for number in self._ids():
            try:
                with self._explained():
                    row = self._connection.execute("SELECT trial FROM trials WHERE rowid = ?", (number,)).fetchone()
                trial = self._trial(row[0]) if row else None
            except StoreError as error:
                on_damage(error)
            else:
                if trial is not None:
                    yield trial

    def _ids(self) -> Iterator[int]:
        """Every number that a trial may have, as far as table and index can be read."""
        with self._explained():
            most = self._pragma("page_count") * self._pragma("page_size") // LEAST_TRIAL_BYTES
        greatest, odd = 0, set[int]()
        for query in (
            "SELECT max(rowid) FROM trials NOT INDEXED",
            "SELECT rowid FROM trials INDEXED BY trials_by_key",
            "SELECT rowid FROM trials NOT INDEXED",
        ):
            with suppress(sqlite3.DatabaseError):
                for (number,) in self._connection.execute(query):
                    if number in range(1, most + 1):
                        greatest = max(greatest, number)
                    elif number is not None:  # nobody's but a damaged store's, or another program's
                        odd.add(number)
        yield from range(1, greatest + 1)
        yield from sorted(odd)

    def _trial(self, text: str) -> Trial:
        try:
            return parse_trial(text)
        except StoreError as error:
            raise StoreError(
                f"store {self.path} is damaged ({error}): write what can be read with atoffer records export "
                "--skip-damaged, and import that into a new store"
            ) from error

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
        try:
            return {str(table): dict(parse_json(header)) for table, header in rows}
        except (ValueError, TypeError) as error:
            raise StoreError(_damaged(self.path)) from error

    def export_jsonl(self, path: str | Path, on_damage: OnDamage | None = None) -> int:
        """Write every trial to `path`, one JSON object a line; says how many. The file is complete or as it was.

        Args:
            path: The file.
            on_damage: As for `trials`.

        Raises:
            StoreError: If the store cannot be read or holds no trial, or the file is a store or cannot be written.
        """
        self._check_target(Path(path))
        count = 0
        with whole_file(Path(path), StoreError, "trials to") as file:
            for trial in self.trials(on_damage):
                file.write(json.dumps(trial.to_json()).encode() + b"\n")
                count += 1
            if not count:
                raise StoreError(f"store {self.path} holds no trials that can be read: nothing was written")
        return count

    def _check_target(self, path: Path) -> None:
        try:
            target = real_path(path)
            own = [self.path, *map(self._beside, SIDE_FILES)]
            if any(target == real_path(file) or (file.exists() and _same_file(path, file)) for file in own):
                raise StoreError(f"{path} is the store itself: choose another file to write")
            if target.is_file():
                with target.open("rb") as file:
                    if not _may_be_replaced(file.readline(LONGEST_LINE)):
                        raise StoreError(
                            f"{path} holds something else than exported trials: choose another file to write"
                        )
        except OSError as error:
            raise StoreError(f"cannot write trials to {path}: {os_reason(error)}") from error

    def add_all(self, trials: Iterable[Trial]) -> int:
        """Add those of `trials` that are not there yet, all of them or none; says how many.

        Raises:
            StoreError: If they cannot be read or written.
        """
        given = list(trials)
        with self._explained(), self._transaction():
            return sum(self._insert_new(trial) for trial in given)

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
        with io.TextIOWrapper(open_regular(Path(path), MOST_IMPORT_BYTES), encoding="utf-8-sig") as file:
            for number, line in enumerate(bounded_lines(file, path), 1):
                yield _checked(path, number, line)
    except FileError as error:
        raise StoreError(f"cannot read trials: {error}") from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {os_reason(error)}") from error
    except UnicodeDecodeError as error:
        raise StoreError(f"{path} is not text: give a file that atoffer records export wrote") from error


def _checked(path: str | Path, number: int, line: str) -> Trial:
    try:
        trial = parse_trial(line)
    except StoreError as error:
        remedy = "mend the line, or remove it" if number > 1 else "give a file that atoffer records export wrote"
        raise StoreError(f"{path}, line {number}: {error}; nothing was added: {remedy}") from error
    if trial.protocol != PROTOCOL_VERSION:
        raise StoreError(
            f"{path}, line {number}: protocol {trial.protocol}, this version measures by protocol {PROTOCOL_VERSION}: "
            "nothing was added: import it with the version that wrote it"
        )
    return trial


def parse_trial(text: str) -> Trial:
    """The trial that `text` is the JSON of.

    Raises:
        StoreError: If it is none.
    """
    try:
        return Trial.from_json(parse_json(text))
    except (ValueError, TypeError) as error:
        raise StoreError("not a trial: it is no JSON") from error


def _packed(trial: Trial) -> tuple[str, str, str, str]:
    """The columns of `trial`: key, kind, status and the trial as JSON."""
    key = trial_key(trial.answers, trial.machine, trial.source_hash, trial.protocol)
    return key, trial.kind, trial.status.value, json.dumps(trial.to_json())


def _may_be_replaced(line: bytes) -> bool:
    """Whether a file that begins with `line` is empty, or an earlier export."""
    try:
        return not line or parse_trial(line.decode()) is not None
    except (StoreError, UnicodeDecodeError):
        return False


def _same_file(left: Path, right: Path) -> bool:
    return left.exists() and left.samefile(right)


def _damaged(path: Path) -> str:
    return (
        f"store {path} is damaged: write what can be read with atoffer records export --skip-damaged, move it away, "
        "and import that into a new store"
    )


def _explain(path: Path, error: sqlite3.Error) -> str:
    """One line that says what to do about an SQLite error."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF  # the rest says which kind of it
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"store {path} is locked by another process: wait for it, or choose another --store"
    if code == sqlite3.SQLITE_FULL:
        return f"no space left for store {path}: free some, everything measured so far is kept"
    if code == sqlite3.SQLITE_IOERR:
        return (
            f"the system refused to read or write store {path}: free some space, raise the limit of file sizes "
            "(ulimit -f) or choose another --store; everything measured so far is kept"
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return f"store {path} cannot be opened, or cannot be written: choose another --store"
    if code == sqlite3.SQLITE_NOTADB:
        return f"{path} is not a trial store, or is damaged: choose another --store, or move it away"
    return _damaged(path)
