"""Record files: how a run goes on where it stopped, and what a record may be written over."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from atoffer_rl.bench.cells import IDENTITY, identity_of
from atoffer_rl.bench.grids import grid_workloads
from atoffer_rl.bench.record import Row, cells_table, check_writable, now, summary_of, table_of, write_record
from atoffer_rl.errors import LogError, SchemeError
from atoffer_rl.json_text import parse_json
from atoffer_rl.scheme import Scheme
from atoffer_rl.whole_file import is_stream, os_reason
from atoffer_rl.workload import Workload

MACHINE_FIELDS = ("device", "uuid", "driver", "versions")
IsCurrent: TypeAlias = Callable[[Row], bool]


def key_of(row: Row) -> tuple[Any, ...]:
    """What tells the row of one workload from another's."""
    return tuple(row.get(name) for name in IDENTITY)


def grid_rows(grid: str, rows: Sequence[Row]) -> tuple[list[Row], int]:
    """The rows of a record that are cells of `grid`, and how many cells have none.

    Args:
        grid: Its name.
        rows: The record's, those of the grid first; what the grid leaves open is as in the first.
    """
    fields = {name: rows[0][name] for name in IDENTITY}
    cells = {key_of(identity_of(cell)) for cell in grid_workloads(grid, Workload(**fields))}
    found = [row for row in rows if key_of(row) in cells]
    return found, len(cells) - len(found)


class RecordFile:
    """A record that is on disk after every row.

    Rows that need to be taken again stay in the file until they were. A pipe is written once, by `finish`.

    Args:
        path: Where; None keeps it in memory alone.
        machine: What `machine_here` says.
        is_current: Whether a row that an earlier run left need not be taken again.
        place_of: Where a row stands among the others.

    Attributes:
        rows: Those of earlier runs that hold, and those added.

    Raises:
        LogError: If the file cannot be used, or holds what another machine, or other versions, gave.
    """

    def __init__(
        self, path: Path | None, machine: dict[str, Any], is_current: IsCurrent, place_of: Callable[[Row], int]
    ) -> None:
        self._path = path
        self._machine = machine
        self._place_of = place_of
        self._failed: dict[str, str] = {}
        self.rows: list[Row] = []
        self._outdated: list[Row] = []
        if path is not None:
            check_writable(path)
            for row in _kept_rows(path, machine):
                (self.rows if is_current(row) else self._outdated).append(row)

    def add(self, row: Row) -> None:
        """Keep one more row, in place of an outdated one.

        Raises:
            LogError: If it cannot be written.
        """
        self._outdated = [other for other in self._outdated if key_of(other) != key_of(row)]
        self.rows.append(row)
        self.rows.sort(key=self._place_of)
        self._update()

    def fail(self, name: str, reason: str) -> None:
        """Note that the cell called `name` has no row.

        Raises:
            LogError: If it cannot be written.
        """
        self._failed[name] = reason
        self._update()

    def finish(self) -> None:
        """Write what could not be written again and again.

        Raises:
            LogError: If it cannot be written.
        """
        if self._path is not None and is_stream(self._path):
            self._write(self._path)

    def _update(self) -> None:
        if self._path is not None and not is_stream(self._path):
            self._write(self._path)

    def _write(self, path: Path) -> None:
        rows = sorted([*self.rows, *self._outdated], key=self._place_of)
        taken = {"taken": now(), "rows": rows} | ({"failed": self._failed} if self._failed else {})
        write_record(path, self._machine | taken)


def mha_rows(path: Path) -> list[Row]:
    """The rows of a record of `bench mha`.

    Raises:
        LogError: If it is not there, cannot be read, or holds something else.
    """
    record = _earlier_record(path, "mha", _check_mha_row)
    if record is None:
        raise LogError(f"there is no record {path}: run atoffer bench mha --json {shlex.quote(str(path))}")
    return [dict(row) for row in record["rows"]]


def _kept_rows(path: Path, machine: dict[str, Any]) -> list[Row]:
    """The rows that earlier runs left in `path`.

    Raises:
        LogError: If it cannot be read, or holds something else than rows that `machine` gave.
    """
    record = _earlier_record(path, "mha", _check_mha_row)
    if record is None:
        return []
    if other := [name for name in MACHINE_FIELDS if record[name] != machine[name]]:
        raise LogError(f"{path} was taken with another {' and '.join(other)}: name another file, or remove it")
    return [dict(row) for row in record["rows"]]


def check_encoder_target(path: Path) -> None:
    """Accept a file that a record of `bench encoder` can be written to: none yet, or an earlier such record.

    Raises:
        LogError: If it cannot be written, or holds something else.
    """
    check_writable(path)
    record = _earlier_record(path, "encoder", _check_encoder_row)
    if record is not None and not record["rows"]:
        raise _not_a_record(path, "encoder")


def _earlier_record(path: Path, bench: str, check_row: Callable[[Any], None]) -> dict[str, Any] | None:
    """The record in `path`, if it is there; what is no regular file, such as a pipe, is not read.

    Raises:
        LogError: If it cannot be read, or is no record of benchmark `bench`, of rows that `check_row` takes.
    """
    if not path.is_file():
        return None
    try:
        record = parse_json(path.read_bytes())
        for row in record["rows"]:
            check_row(row)
        return {name: record[name] for name in (*MACHINE_FIELDS, "rows")}
    except OSError as error:
        raise LogError(f"cannot read {path}: {os_reason(error)}") from error
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, SchemeError) as error:
        raise _not_a_record(path, bench) from error


def _not_a_record(path: Path, bench: str) -> LogError:
    return LogError(f"{path} is not a record of bench {bench}: name another file")


def _check_mha_row(row: Any) -> None:
    """Accept a row of an earlier `bench mha` that can be told from others and that tables can show.

    Raises:
        ArithmeticError, AttributeError, KeyError, TypeError or ValueError: If not.
    """
    hash(tuple(row[name] for name in (*IDENTITY, "ours_source")))
    cells_table([row])
    summary_of([row])


def _check_encoder_row(row: Any) -> None:
    """Accept a row of an earlier `bench encoder`.

    Raises:
        ArithmeticError, AttributeError, KeyError, TypeError or ValueError: If it is none.
    """
    Scheme.from_json(row["ours_scheme"])
    table_of([row])
