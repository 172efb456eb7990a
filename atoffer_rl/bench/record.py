"""Benchmark records: what `--json` writes, and the tables that people read."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import exp, log
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeAlias

from atoffer_rl.errors import LogError
from atoffer_rl.kernels.machine import current_device, current_machine
from atoffer_rl.whole_file import is_stream, os_reason, real_path, whole_file

PACKAGES = ("torch", "triton", "cupy-cuda13x", "cuda-core", "nvmath-python", "xformers", "flashinfer-python")
Row: TypeAlias = dict[str, Any]
COMMON_MASKS = ("causal", "dense")
"""Masks that every library has kernels for; means tell the others apart from them."""


def machine_here() -> dict[str, Any]:
    """What a record says of where it was taken: the current GPU, its driver, versions, and the floor's bandwidth."""
    machine = asdict(current_machine())
    return {name: machine[name] for name in ("device", "uuid", "driver")} | {
        "versions": {"compiler": machine["compiler"]} | {name: _version(name) for name in PACKAGES},
        "floor_gb_s": current_device().bandwidth_gb_s,
    }


def record_of(rows: Sequence[Row]) -> dict[str, Any]:
    """The record of one run on the current GPU: device, driver, versions, date, rows."""
    return machine_here() | {"taken": now(), "rows": list(rows)}


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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LogError(f"cannot write {path}: {os_reason(error)}") from error
    with whole_file(path, LogError, "record") as file:
        file.write((json.dumps(record, indent=1) + "\n").encode())


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


def details_table(rows: Sequence[Row]) -> tuple[list[str], list[list[object]]]:
    """`cells_table` with the larger of the two errors as a share of its budget, and which of our choices ran."""
    columns, lines = cells_table(rows)
    for row, line in zip(rows, lines, strict=True):
        shares = (row["max_error"] / row["error_budget"], row["peaked_error"] / row["peaked_budget"])
        line += [f"{max(shares):.2f}", f"`{row['ours_choice'].partition(':')[2]}`"]
    return [*columns, "error over its budget", "ours"], lines


def summary_of(rows: Sequence[Row]) -> str:
    """The geometric means of the speedups, the smallest and the largest; empty if there are none."""
    known = sorted((row for row in rows if row["speedup"] is not None), key=lambda row: float(row["speedup"]))
    if not known:
        return ""
    ends = [
        f"{word} {_times(row['speedup'])} ({short_mask(row['mask'])}, B {row['batch']}, S {row['seq_len']})"
        for word, row in (("smallest", known[0]), ("largest", known[-1]))
    ]
    return f"speedup over the fastest peer: {means_of(known)}, {ends[0]}, {ends[1]}"


def means_of(rows: Sequence[Row]) -> str:
    """The geometric mean of the speedups; where there are common masks among others, those apart."""
    common = [row for row in rows if row["mask"] in COMMON_MASKS]
    others = [row for row in rows if row["mask"] not in COMMON_MASKS]
    if not common or not others:
        return f"geometric mean {geometric_mean(rows):.2f}"
    return f"geometric mean {geometric_mean(others):.2f} (causal and dense apart: {geometric_mean(common):.2f})"


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


def now() -> str:
    """The time as records say it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
