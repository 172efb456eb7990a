"""Benchmark records: what `--json` writes, how a run goes on where it stopped, and the tables that people read."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import exp, log
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeAlias

from atoffer_rl.bench.cells import IDENTITY
from atoffer_rl.errors import LogError, SchemeError
from atoffer_rl.kernels.machine import current_device, current_machine
from atoffer_rl.scheme import Scheme
from atoffer_rl.whole_file import os_reason, real_path, whole_file

PACKAGES = ("torch", "triton", "cupy-cuda13x", "cuda-core", "nvmath-python")
MACHINE_FIELDS = ("device", "uuid", "driver", "versions")
Row: TypeAlias = dict[str, Any]
IsCurrent: TypeAlias = Callable[[Row], bool]


def machine_here() -> dict[str, Any]:
    """What a record says of where it was taken: the current GPU, its driver, versions, and the floor's bandwidth."""
    machine = asdict(current_machine())
    return {name: machine[name] for name in ("device", "uuid", "driver")} | {
        "versions": {name: _version(name) for name in PACKAGES},
        "floor_gb_s": current_device().bandwidth_gb_s,
    }


def record_of(rows: Sequence[Row]) -> dict[str, Any]:
    """The record of one run on the current GPU: device, driver, versions, date, rows."""
    return machine_here() | {"taken": _now(), "rows": list(rows)}


def key_of(row: Row) -> tuple[Any, ...]:
    """What tells the row of one workload from another's."""
    return tuple(row.get(name) for name in IDENTITY)


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
        taken = {"taken": _now(), "rows": rows} | ({"failed": self._failed} if self._failed else {})
        write_record(path, self._machine | taken)


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
        record = json.loads(path.read_text(encoding="utf-8"))
        for row in record["rows"]:
            check_row(row)
        return {name: record[name] for name in (*MACHINE_FIELDS, "rows")}
    except OSError as error:
        raise LogError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError, SchemeError) as error:
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


def is_stream(path: Path) -> bool:
    """Whether `path` is no regular file, such as a pipe or a terminal: it cannot be read or replaced."""
    return path.exists() and not path.is_file()


def check_writable(path: Path) -> None:
    """Accept a file that a record can be written to; the folder that it lies in is made.

    Raises:
        LogError: If it cannot be written.
    """
    if path.is_dir():
        raise LogError(f"cannot write {path}: it is a folder")
    if path.exists() and not os.access(path, os.W_OK):
        raise LogError(f"cannot write {path}: it is write-protected, name another file")
    if is_stream(path):
        return
    try:
        folder = real_path(path).parent
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise LogError(f"cannot write {path}: {os_reason(error)}") from error


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write `record`; whoever is interrupted leaves what was there before.

    Raises:
        LogError: If it cannot be written.
    """
    content = (json.dumps(record, indent=1) + "\n").encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_stream(path):  # by its own name: that of a pipe behind /dev/stdout names no file
            path.write_bytes(content)
            return
    except BrokenPipeError:
        raise
    except OSError as error:
        raise LogError(f"cannot write {path}: {os_reason(error)}") from error
    with whole_file(path, LogError, "record") as file:
        file.write(content)


def table_of(rows: Sequence[Row]) -> tuple[list[str], list[list[object]]]:
    """Columns and lines of a table with ours, each peer, and the speedup over the fastest peer."""
    peers = list(dict.fromkeys(name for row in rows for name in (*row["peers"], *row["peer_errors"])))
    columns = ["mask", "B", "S", "ours us", *(f"{name} us" for name in peers), "speedup"]
    lines: list[list[object]] = [
        [
            row["mask"],
            row["batch"],
            row["seq_len"],
            f"{row['ours_us']:.1f}",
            *(f"{row['peers'][name]:.1f}" if name in row["peers"] else "-" for name in peers),
            _times(row["speedup"]),
        ]
        for row in rows
    ]
    return columns, lines


def cells_table(rows: Sequence[Row]) -> tuple[list[str], list[list[object]]]:
    """Columns and lines of a table with a line a cell: ours, the fastest peer, the speedup, how far the floor is."""
    shapes = len({(row["heads"], row["head_dim"]) for row in rows}) > 1
    columns = ["mask", "B", "S", *(["H", "W"] if shapes else [])]
    columns += ["ours us", "fastest peer", "its us", "speedup", "over the floor"]
    lines: list[list[object]] = []
    for row in rows:
        peers = row["peers"]
        fastest = min(peers, key=lambda name: peers[name], default="-")
        lines.append(
            [
                short_mask(row["mask"]),
                row["batch"],
                row["seq_len"],
                *([row["heads"], row["head_dim"]] if shapes else []),
                f"{row['ours_us']:.1f}",
                fastest,
                f"{peers[fastest]:.1f}" if peers else "-",
                _times(row["speedup"]),
                f"{row['ours_us'] / row['bytes_floor_us']:.2f}",
            ]
        )
    return columns, lines


def summary_of(rows: Sequence[Row]) -> str:
    """The geometric mean of the speedups, the smallest and the largest; empty if there are none."""
    known = sorted((row for row in rows if row["speedup"] is not None), key=lambda row: float(row["speedup"]))
    if not known:
        return ""
    ends = [
        f"{word} {_times(row['speedup'])} ({short_mask(row['mask'])}, B {row['batch']}, S {row['seq_len']})"
        for word, row in (("smallest", known[0]), ("largest", known[-1]))
    ]
    return f"speedup over the fastest peer: geometric mean {geometric_mean(known):.2f}, {ends[0]}, {ends[1]}"


def geometric_mean(rows: Sequence[Row]) -> float:
    """Of the speedups of rows that have one."""
    logs = [log(row["speedup"]) for row in rows if row["speedup"] is not None]
    return exp(sum(logs) / len(logs))


def short_mask(mask: str) -> str:
    """A mask as a table's cell has room for: documents by their number."""
    name, _, rest = mask.partition(":")
    return f"document, {rest.count('/') + 1} of them" if name == "document" else mask


def speedup_table(rows: Sequence[Row]) -> tuple[list[str], list[list[object]]]:
    """Columns and lines of a table of speedups: a line for each mask, shape and batch, a column for each length."""
    lengths = sorted({row["seq_len"] for row in rows})
    shapes = len({(row["heads"], row["head_dim"]) for row in rows}) > 1
    cells: dict[tuple[object, ...], dict[int, str]] = {}
    for row in rows:
        shape = (row["heads"], row["head_dim"]) if shapes else ()
        cells.setdefault((_family(row["mask"]), *shape, row["batch"]), {})[row["seq_len"]] = _times(row["speedup"])
    columns = ["mask", *(["H", "W"] if shapes else []), "B", *(f"S {seq_len}" for seq_len in lengths)]
    return columns, [[*key, *(found.get(seq_len, "-") for seq_len in lengths)] for key, found in cells.items()]


def _family(mask: str) -> str:
    """A mask without what follows from the length."""
    return mask.partition(":")[0] if mask.startswith(("strided:", "fixed:")) else short_mask(mask)


def _times(speedup: float | None) -> str:
    return "-" if speedup is None else f"{speedup:.2f}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
