"""Benchmark records: what `--json` writes, and the table that people read."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from atoffer_rl.kernels.machine import current_machine

PACKAGES = ("torch", "triton", "cupy-cuda13x", "cuda-core", "nvmath-python")


def record_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The record of one run on the current GPU: device, driver, versions, date, rows."""
    machine = asdict(current_machine())
    return {
        "device": machine["device"],
        "driver": machine["driver"],
        "versions": {name: _version(name) for name in PACKAGES},
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": list(rows),
    }


def table_of(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[object]]]:
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
            f"{row['speedup']:.2f}",
        ]
        for row in rows
    ]
    return columns, lines


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
