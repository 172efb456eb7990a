"""Recorded tables: every choice of some workloads, measured on one warm machine, shipped as package data.

A table is a gzip file of JSON lines: the header, then one trial a line, with what all trials share
(machine, identity, protocol) said once, in the header, and choices written as `Choice` prints them.
"""

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from atoffer_rl.device import DeviceSpec
from atoffer_rl.errors import FileError, MaskError, NotRecorded, SchemeError, StoreError, WorkloadError
from atoffer_rl.json_text import parse_json
from atoffer_rl.quote import quote
from atoffer_rl.regular_file import bounded_lines, read_regular
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice, Scheme, count_partitions
from atoffer_rl.signature import signature
from atoffer_rl.trial import PROTOCOL_VERSION, Machine, Status, Trial, check_machine, check_trial, is_latency
from atoffer_rl.whole_file import os_reason, whole_file
from atoffer_rl.workload import Workload

RECORDS_FOLDER = Path(__file__).parent / "records"
SUFFIX = ".jsonl.gz"
FORMAT = "atoffer-table-1"
REMEDY = "record it again, or move it away"
MOST_BYTES = 2**28
"""Of a table, unpacked: a small file may claim to be anything."""
_OF_DAMAGE = (ValueError, TypeError, LookupError)
_CHOICE = re.compile(r"\[(\d+),(\d+)\]:(\w+)(?:\((.*)\))?")


@dataclass(frozen=True)
class AnchorSample:
    """One timing of the anchor kernels.

    Attributes:
        taken: When, ISO 8601 UTC.
        latencies_us: By anchor.
        sm_clock_mhz: Clock of the multiprocessors, 0 where it cannot be read.
        temperature_c: Of the GPU, 0 where it cannot be read.
    """

    taken: str
    latencies_us: dict[str, float]
    sm_clock_mhz: int = 0
    temperature_c: int = 0


@dataclass(frozen=True)
class TableHeader:
    """What all trials of a table share.

    Attributes:
        table: Its identity: one machine, one warm card.
        machine: Where it was taken.
        device: The GPU.
        workloads: What it is complete for.
        spaces: Version of each template's space file.
        anchors: Every timing of the anchor kernels, the first one being the table's reference.
    """

    table: str
    machine: Machine
    device: DeviceSpec
    workloads: tuple[Workload, ...]
    spaces: Mapping[str, int]
    anchors: tuple[AnchorSample, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The header as plain JSON values."""
        return {
            "format": FORMAT,
            "protocol": PROTOCOL_VERSION,
            "table": self.table,
            "machine": asdict(self.machine),
            "device": self.device.to_json(),
            "workloads": [workload.to_json() for workload in self.workloads],
            "spaces": dict(self.spaces),
            "anchors": [asdict(anchor) for anchor in self.anchors],
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The header that `to_json` wrote, without workloads whose mask is a file that cannot be had here.

        Raises:
            StoreError: If it is not one, or is of another protocol.
        """
        if not isinstance(value, dict) or "format" not in value or "protocol" not in value:
            raise StoreError("not the header of a recorded table")
        for name, expected in (("format", FORMAT), ("protocol", PROTOCOL_VERSION)):
            if type(value[name]) is not type(expected) or value[name] != expected:
                raise StoreError(f"it is of {name} {quote(value[name])}, this version of atoffer_rl reads {expected}")
        try:
            header = cls(
                value["table"],
                Machine(**value["machine"]),
                DeviceSpec.from_json(value["device"]),
                tuple(_workloads(value["workloads"])),
                dict(value["spaces"]),
                tuple(AnchorSample(**item) for item in value["anchors"]),
            )
            _check_header(header)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError("a field of the header is missing, unknown or of the wrong type") from error
        except WorkloadError as error:
            raise StoreError(f"a workload of the header is none: {error}") from error
        return header


def _workloads(values: Iterable[Any]) -> Iterator[Workload]:
    for value in values:
        try:
            yield Workload.from_json(value)
        except MaskError:
            if not value["mask"].startswith("file:"):
                raise


def _check_header(header: TableHeader) -> None:
    check_machine(header.machine)
    right = isinstance(header.table, str) and all(type(version) is int for version in header.spaces.values())
    for anchor in header.anchors:
        right = right and isinstance(anchor.taken, str) and all(map(is_latency, anchor.latencies_us.values()))
        right = right and all(
            type(value) is int and value >= 0 for value in (anchor.sm_clock_mhz, anchor.temperature_c)
        )
    if not right:
        raise StoreError("a field of the header is out of range or of the wrong type")


@dataclass(frozen=True)
class RecordedTable:
    """A header and its trials; where a request was measured more than once, the last one answers."""

    header: TableHeader
    trials: tuple[Trial, ...] = field(repr=False)

    @property
    def device(self) -> DeviceSpec:
        """The GPU it was taken on."""
        return self.header.device

    def covers(self, workload: Workload) -> bool:
        """Whether recorded runs make up a layer of `workload` (its layers and epsilon do not matter)."""
        recorded = {(trial.subject, trial.choice.run) for trial in self.trials if trial.choice is not None}
        runs = {run for subject, run in recorded if signature(workload, run) == subject}
        return count_partitions(frozenset(runs)) > 0

    def segments(self, workload: Workload) -> dict[Choice, Trial]:
        """The recorded trial of every choice of `workload`."""
        by_subject: dict[tuple[str, Run], bool] = {}
        found: dict[Choice, Trial] = {}
        for trial in self.trials:
            if trial.choice is None:
                continue
            key = (trial.subject, trial.choice.run)
            if key not in by_subject:
                by_subject[key] = signature(workload, trial.choice.run) == trial.subject
            if by_subject[key]:
                found[trial.choice] = trial
        return found

    def forwards(self, workload: Workload) -> dict[Scheme, Trial]:
        """The recorded whole forwards of `workload`."""
        subject = f"workload={workload.key}"
        return {trial.scheme: trial for trial in self.trials if trial.scheme is not None and trial.subject == subject}


def parse_choice(text: str) -> Choice:
    """The choice that prints as `text`.

    Raises:
        SchemeError: If it does not read as one.
    """
    match = _CHOICE.fullmatch(text)
    if match is None:
        raise SchemeError(f"not a choice: {quote(text)}")
    first, last, template, values = match.groups()
    pairs = (item.partition("=") for item in (values or "").split(",") if item)
    try:
        parameters = tuple((name, int(value)) for name, _, value in pairs)
        return Choice(Run(int(first), int(last)), template, parameters)
    except ValueError as error:
        raise SchemeError(f"not a choice: {quote(text)}") from error


def save_table(table: RecordedTable, path: Path) -> None:
    """Write `table` to `path`; the file is complete or not there.

    Raises:
        StoreError: If it cannot be written.
    """
    subjects = {subject: index for index, subject in enumerate(dict.fromkeys(t.subject for t in table.trials))}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write table {path}: {os_reason(error)}") from error
    # No time stamp and no name in the gzip header: same table, same bytes.
    with whole_file(path, StoreError, "table") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        for value in _lines(table, subjects):
            file.write(json.dumps(value, separators=(",", ":")).encode() + b"\n")


def _lines(table: RecordedTable, subjects: Mapping[str, int]) -> Iterator[Any]:
    yield table.header.to_json() | {"subjects": list(subjects)}
    for trial in table.trials:
        yield _pack(trial, subjects[trial.subject])


def _pack(trial: Trial, subject: int) -> list[Any]:
    """A trial as a short list: what is not needed again is dropped, numbers keep the digits that mean something."""
    asked = (
        str(trial.choice) if trial.choice else [str(choice) for choice in trial.scheme.choices] if trial.scheme else []
    )
    seconds = [round(value, 4) for value in (trial.compile_seconds, trial.verify_seconds, trial.measure_seconds)]
    errors = [float(f"{value:.3g}") if value is not None else None for value in (trial.max_error, trial.error_budget)]
    samples = [round(value, 2) for value in trial.samples_us]
    latency = round(trial.latency_us, 3) if trial.latency_us is not None else None
    row = [subject, asked, trial.execution, trial.status.value, latency, samples, seconds, errors, trial.source_hash]
    return [*row, trial.reason, trial.detail] if trial.reason or trial.detail else row


def _unpack(row: Any, subjects: list[str], header: TableHeader, choice_of: Callable[[str], Choice]) -> Trial:
    subject, asked, execution, status, latency, samples, seconds, errors, source_hash, *rest = row
    reason, detail = rest or ("", {})
    max_error, error_budget = errors
    compile_seconds, verify_seconds, measure_seconds = seconds
    forward = isinstance(asked, list)
    trial = Trial(
        subject=subjects[_index(subject)],
        choice=None if forward else choice_of(asked),
        scheme=Scheme(tuple(choice_of(text) for text in asked), execution) if forward else None,
        execution=execution,
        status=Status(status),
        reason=reason,
        latency_us=latency,
        samples_us=tuple(samples),
        max_error=max_error,
        error_budget=error_budget,
        compile_seconds=compile_seconds,
        verify_seconds=verify_seconds,
        measure_seconds=measure_seconds,
        table=header.table,
        source_hash=source_hash,
        machine=header.machine,
        detail=detail,
        taken=header.anchors[0].taken if header.anchors else "",
    )
    check_trial(trial)
    return trial


def _index(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("an index is a whole number from 0")
    return value


def load_table(path: Path) -> RecordedTable:
    """The table in `path`.

    Raises:
        StoreError: If it is damaged, of another protocol, or cannot be read.
    """
    try:
        with io.TextIOWrapper(io.BytesIO(_unpacked(path)), encoding="utf-8") as file:
            lines = bounded_lines(file, path)
            first = parse_json(next(lines))
            header, subjects = TableHeader.from_json(first), _subjects(first)
            choice_of = lru_cache(maxsize=None)(parse_choice)  # a table names each of its choices many times
            trials = tuple(_row(number, line, subjects, header, choice_of) for number, line in enumerate(lines, 2))
    except FileError as error:
        raise StoreError(f"cannot read table: {error}") from error
    except gzip.BadGzipFile as error:
        raise StoreError(f"{path} is not a recorded table, or is damaged: {REMEDY}") from error
    except OSError as error:
        raise StoreError(f"cannot read table {path}: {os_reason(error)}") from error
    except StopIteration as error:
        raise StoreError(f"table {path} is empty: {REMEDY}") from error
    except (EOFError, zlib.error) as error:
        raise StoreError(f"table {path} is cut short or damaged: {REMEDY}") from error
    except (*_OF_DAMAGE, SchemeError) as error:
        raise StoreError(f"table {path} is damaged: {REMEDY}") from error
    except StoreError as error:
        raise StoreError(f"table {path} cannot be used, {error}: {REMEDY}") from error
    return RecordedTable(header, trials)


def _unpacked(path: Path) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(read_regular(path, MOST_BYTES))) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise StoreError(f"it holds over {MOST_BYTES} bytes")
    return content


def _row(number: int, line: str, subjects: list[str], header: TableHeader, choice_of: Callable[[str], Choice]) -> Trial:
    try:
        return _unpack(parse_json(line), subjects, header, choice_of)
    except (*_OF_DAMAGE, SchemeError) as error:
        raise StoreError(f"line {number} is no row of a table") from error
    except StoreError as error:
        raise StoreError(f"line {number} is damaged ({error})") from error


def _subjects(header: Mapping[str, Any]) -> list[str]:
    subjects = header["subjects"]
    if not isinstance(subjects, list) or not all(isinstance(subject, str) for subject in subjects):
        raise TypeError("subjects are texts")
    return subjects


def table_paths(folder: Path = RECORDS_FOLDER) -> tuple[Path, ...]:
    """Files of the recorded tables, by name."""
    return tuple(sorted(folder.glob(f"*{SUFFIX}")))


@lru_cache(maxsize=8)
def _shipped(path: Path) -> RecordedTable:
    return load_table(path)


def recorded_tables(folder: Path = RECORDS_FOLDER) -> tuple[RecordedTable, ...]:
    """Every recorded table of `folder`, read once.

    Raises:
        StoreError: If one is damaged.
    """
    return tuple(_shipped(path) for path in table_paths(folder))


def recorded_workloads(folder: Path = RECORDS_FOLDER) -> tuple[Workload, ...]:
    """The workloads that recorded tables are complete for."""
    return tuple(workload for table in recorded_tables(folder) for workload in table.header.workloads)


def table_for(workload: Workload, folder: Path = RECORDS_FOLDER) -> RecordedTable:
    """The first recorded table that covers `workload`.

    Raises:
        NotRecorded: If there is none; says what is recorded.
    """
    for table in recorded_tables(folder):
        if table.covers(workload):
            return table
    raise NotRecorded(
        f"{describe(workload)} is not recorded; recorded: {list_workloads(recorded_workloads(folder))}; "
        "to measure it use --measurer cuda on a machine with a GPU"
    )


def describe(workload: Workload) -> str:
    """A workload in a few words."""
    w = workload
    shapes = f"B {w.batch}, S {w.seq_len}, H {w.heads}, W {w.head_dim}, F {w.ffn_dim}"
    lengths = f", lengths {w.lengths}" + ", packed" * w.packed if w.padded else ""
    return f"{shapes}, {w.mask}, {w.activation}, {w.dtype}{lengths}"


def list_workloads(workloads: Iterable[Workload]) -> str:
    """A workload in a few words, how many there are and what shows them, or `none`."""
    listed = list(workloads)
    if len(listed) > 1:
        return f"{len(listed)} workloads (`atoffer records list` shows them)"
    return describe(listed[0]) if listed else "none"
