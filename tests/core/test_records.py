"""Recorded tables: files, coverage, oracle and sums."""

import gzip
import json
import math
import os
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from atoffer_rl import records, regular_file
from atoffer_rl.device import H100
from atoffer_rl.errors import NotRecorded, SchemeError, StoreError
from atoffer_rl.records import (
    AnchorSample,
    RecordedTable,
    TableHeader,
    load_table,
    parse_choice,
    recorded_tables,
    save_table,
    table_for,
    table_paths,
)
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice, Scheme
from atoffer_rl.shortest_path import best_schemes
from atoffer_rl.signature import signature
from atoffer_rl.table_summary import best_recorded, check_sums, spearman
from atoffer_rl.trial import Machine, Status, Trial
from atoffer_rl.workload import Workload
from tests.core.test_whole_file import small_files
from tests.large_scores import LARGE_SCORES
from tests.synthetic import synthetic_table

WORKLOAD = Workload(batch=2, seq_len=32, heads=2, head_dim=32, ffn_dim=128, layers=2)
MACHINE = Machine("GPU", "uuid", "1", "13.0", "nvrtc", "cublas")
RUNS = [Run(i, i) for i in range(15)] + [Run(2, 5), Run(8, 9), Run(13, 14)]


def toy_latency_us(choice: Choice) -> float:
    return 1.0 + 0.37 * (choice.run.last - choice.run.first) + 0.11 * choice["p"] * (1 + choice.run.first % 3)


def toy_table(workload: Workload = WORKLOAD) -> RecordedTable:
    trials = []
    for run, value in product(RUNS, (1, 2)):
        choice = Choice(run, "toy", (("p", value),))
        latency = toy_latency_us(choice)
        trials.append(
            Trial(
                signature(workload, run),
                choice,
                None,
                "plain",
                Status.OK,
                "",
                latency,
                (latency,) * 20,
                1e-4,
                1e-3,
                0.2,
                0.05,
                0.03,
                "t",
                "abc",
                MACHINE,
                taken="now",
            )
        )
    failed = replace(
        trials[0],
        choice=Choice(Run(0, 0), "toy", (("p", 3),)),
        status=Status.CRASHED,
        reason="illegal address",
        latency_us=None,
        samples_us=(),
        max_error=None,
        error_budget=None,
        detail={"sm_clock_mhz": 1980},
    )
    header = TableHeader("t", MACHINE, H100, (workload,), {"toy": 1}, (AnchorSample("now", {"math": 9.0}, 1980, 40),))
    return RecordedTable(header, (*trials, failed))


def forward(scheme: Scheme, latency_us: float) -> Trial:
    return Trial(
        f"workload={WORKLOAD.key}", None, scheme, "plain", Status.OK, "", latency_us, (latency_us,), machine=MACHINE
    )


def toy_latencies() -> dict[Choice, float]:
    return {t.choice: t.latency_us for t in toy_table().trials if t.choice and t.latency_us is not None}


def test_choices_read_back_as_they_print() -> None:
    for choice in (Choice(Run(2, 5), "gather", (("a", 1), ("b", -2))), Choice(Run(0, 0), "chain")):
        assert parse_choice(str(choice)) == choice
    digits = "9" * 5000
    for text in ("", "[1]:x", "[1,2]:x(a)", "[1,2]:x(a=b)", f"[1,{digits}]:x", f"[1,2]:x(a={digits})", "x" * 10**6):
        with pytest.raises(SchemeError) as error:
            parse_choice(text)
        assert len(str(error.value)) < 300


def test_tables_round_trip_and_are_reproducible(tmp_path: Path) -> None:
    table = toy_table()
    table = replace(table, trials=(*table.trials, forward(best_recorded(table, WORKLOAD)[0], 30.0)))
    save_table(table, tmp_path / "a.jsonl.gz")
    save_table(table, tmp_path / "b.jsonl.gz")
    loaded = load_table(tmp_path / "a.jsonl.gz")
    assert loaded.header == table.header
    assert [trial.answers for trial in loaded.trials] == [trial.answers for trial in table.trials]
    assert [trial.status for trial in loaded.trials] == [trial.status for trial in table.trials]
    assert [trial.seconds for trial in loaded.trials] == pytest.approx([trial.seconds for trial in table.trials])
    assert loaded.trials[-2] == table.trials[-2]
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


@pytest.mark.parametrize("content", [b"", b"{}\n", b'{"format": "atoffer-table-1", "protocol": 99}\n', b"\xff\xfe"])
def test_a_damaged_table(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(StoreError) as error:
        load_table(path)
    assert "\n" not in str(error.value)


def test_damaged_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    save_table(toy_table(), path)
    header, first, *_ = gzip.decompress(path.read_bytes()).decode().splitlines()
    row = json.loads(first)
    assert row[3] == "ok"
    changes: list[tuple[int, object]] = [(1, "x"), (1, 3), (3, "fine"), (3, "crashed"), (6, []), (8, 3), (5, "abc")]
    changes += [(4, value) for value in ("fast", -1.0, None, math.nan, 0, True, 1e308)]
    changes += [(0, -1), (0, True), (0, 1000), (1, "[5,3]:toy(p=1)"), (1, "[0,0]:toy(p=1,p=2)"), (1, "[0,15]:toy(p=1)")]
    changes += [(6, ["1", 0, 0]), (6, [0, True, 0]), (6, [0, 0, 1e308]), (6, [0, 0, 0, 0]), (7, ["x", 0]), (7, [0])]
    damaged = [json.dumps([*row[:place], value, *row[place + 1 :]]) for place, value in changes]
    for line in (*damaged, "[" * 100_000, "[" * 500 + "]" * 500, "", "{}", "[1, 2]"):
        path.write_bytes(gzip.compress(f"{header}\n{line}\n".encode()))
        with pytest.raises(StoreError, match=r"line 2 .*record it again") as error:
            load_table(path)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("device", value) for value in (None, {}, H100.to_json() | {"multiprocessors": "132"})),
        *(("machine", value) for value in (None, {"cards": 1}, {"device": 3})),
        *(("workloads", value) for value in (None, 3, [3], [{"batch": 0}])),
        *(("spaces", value) for value in (None, 3, {"toy": "1"}, {"toy": True})),
        *(("anchors", value) for value in (None, 3, [3], [{"taken": "now", "latencies_us": {"math": 0}}])),
        *(
            ("anchors", [{"taken": "now", "latencies_us": {}, name: value}])
            for name, value in (("temperature_c", "x"), ("taken", 3), ("latencies_us", None), ("latencies_us", 3))
        ),
        *(("subjects", value) for value in (None, "abc", [3], {})),
        ("table", 3),
    ],
)
def test_damaged_headers(tmp_path: Path, name: str, value: object) -> None:
    path = tmp_path / "a.jsonl.gz"
    save_table(toy_table(), path)
    first, *rows = gzip.decompress(path.read_bytes()).decode().splitlines()
    path.write_bytes(gzip.compress("\n".join([json.dumps(json.loads(first) | {name: value}), *rows]).encode()))
    with pytest.raises(StoreError, match="record it again") as error:
        load_table(path)
    assert "\n" not in str(error.value)


def test_what_a_file_is_is_told_plainly(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    for content, says in (
        (b"hello", "not a recorded table"),
        (gzip.compress(b'{"format": "atoffer-table-2", "protocol": 1}\n'), "is of format 'atoffer-table-2'"),
        (gzip.compress(b'{"format": "atoffer-table-1", "protocol": 2}\n'), "is of protocol 2, this version"),
        (gzip.compress(b'{"format": "atoffer-table-1", "protocol": 3.0}\n'), "is of protocol 3.0, "),
        (gzip.compress(b"{}\n"), "not the header"),
        (gzip.compress(b"x" * 1000)[:-12], "cut short"),
    ):
        path.write_bytes(content)
        with pytest.raises(StoreError, match=f"{says}.*record it again, or move it away") as error:
            load_table(path)
        assert "b'" not in str(error.value)
        assert "damaged (" not in str(error.value)


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl.gz")
    for path in (*table_paths(tmp_path), Path("/dev/zero"), tmp_path):
        with pytest.raises(StoreError, match="choose a regular file"):
            load_table(path)


def test_no_more_is_read_than_a_table_may_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl.gz"
    save_table(toy_table(), path)
    size = len(gzip.decompress(path.read_bytes()))
    monkeypatch.setattr(records, "MOST_BYTES", size)
    assert len(load_table(path).trials) == len(toy_table().trials)
    monkeypatch.setattr(records, "MOST_BYTES", size - 1)
    with pytest.raises(StoreError, match=f"holds over {size - 1} bytes"):
        load_table(path)
    monkeypatch.setattr(records, "MOST_BYTES", size)
    monkeypatch.setattr(regular_file, "LONGEST_LINE", 100)
    with pytest.raises(StoreError, match="a line of over 100 characters"):
        load_table(path)
    monkeypatch.setattr(records, "MOST_BYTES", path.stat().st_size - 1)
    with pytest.raises(StoreError, match="choose another file"):
        load_table(path)


def test_a_table_that_cannot_be_written_leaves_the_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b"precious")
    with small_files(50), pytest.raises(StoreError, match="ulimit"):
        save_table(toy_table(), path)
    assert path.read_bytes() == b"precious"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("place", [0, 12, 200])
def test_a_table_with_altered_bytes(tmp_path: Path, place: int) -> None:
    path = tmp_path / "a.jsonl.gz"
    save_table(toy_table(), path)
    content = bytearray(path.read_bytes())
    content[place : place + 40] = bytes(40)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="table"):
        load_table(path)


def test_a_truncated_table(tmp_path: Path) -> None:
    save_table(toy_table(), tmp_path / "a.jsonl.gz")
    (tmp_path / "a.jsonl.gz").write_bytes((tmp_path / "a.jsonl.gz").read_bytes()[:-40])
    with pytest.raises(StoreError):
        load_table(tmp_path / "a.jsonl.gz")


def test_a_table_is_found_by_its_signatures(tmp_path: Path) -> None:
    save_table(toy_table(), tmp_path / "a.jsonl.gz")
    assert table_for(replace(WORKLOAD, layers=7), tmp_path).header.table == "t"
    with pytest.raises(NotRecorded, match="strided") as error:
        table_for(replace(WORKLOAD, mask="causal"), tmp_path)
    assert "--measurer cuda" in str(error.value)
    with pytest.raises(NotRecorded, match="recorded: none"):
        table_for(WORKLOAD, tmp_path / "nowhere")


def test_segments_take_the_last_trial() -> None:
    table = toy_table()
    again = replace(table.trials[0], latency_us=0.5)
    table = replace(table, trials=(*table.trials, again))
    assert again.choice is not None
    assert table.segments(WORKLOAD)[again.choice].latency_us == 0.5


def test_best_schemes_are_those_of_exhaustive_search() -> None:
    latencies = toy_latencies()
    small = {choice: value for choice, value in latencies.items() if choice["p"] == 1 or choice.run.first in (2, 3, 8)}

    def ways(first: int) -> list[tuple[Choice, ...]]:
        if first == 15:
            return [()]
        return [(c, *rest) for c in small if c.run.first == first for rest in ways(c.run.last + 1)]

    everything = sorted((sum(small[c] for c in scheme), Scheme(scheme).key) for scheme in ways(0))
    found = best_schemes(small, 20)
    assert [total for total, _ in found] == pytest.approx([total for total, _ in everything[:20]])
    assert len({scheme for _, scheme in found}) == 20
    assert len(best_schemes(small, 10**6)) == len(everything)
    assert best_schemes({}, 3) == []


def test_the_oracle_is_the_shortest_path() -> None:
    scheme, total = best_recorded(toy_table(), WORKLOAD)
    assert total == pytest.approx(sum(toy_latencies()[choice] for choice in scheme.choices))
    assert Run(2, 5) in scheme.runs
    assert all(choice["p"] == 1 for choice in scheme.choices)


def test_sums_are_checked_against_forwards() -> None:
    table = toy_table()
    finalists = best_schemes(toy_latencies(), 40)
    forwards = tuple(forward(scheme, 2.0 * round(total, 6)) for total, scheme in finalists)
    check = check_sums(replace(table, trials=table.trials + forwards), WORKLOAD)
    assert check.rank_correlation == pytest.approx(1.0, abs=1e-6)
    assert check.oracle_excess == pytest.approx(0.0)
    assert check.sum_over_forward == pytest.approx(1.0)
    slower = (replace(forwards[0], latency_us=1.5 * finalists[0][0] * 2.0), *forwards[1:])
    assert check_sums(replace(table, trials=table.trials + slower), WORKLOAD).oracle_excess > 0.3
    with pytest.raises(NotRecorded):
        check_sums(table, WORKLOAD)


def test_the_oracle_may_be_kept_to_legal_choices() -> None:
    table = toy_table()
    legal = {choice for choice in toy_latencies() if choice["p"] == 2}
    kept = best_schemes({choice: us for choice, us in toy_latencies().items() if choice in legal}, 1)[0]
    table = replace(table, trials=(*table.trials, forward(kept[1], 2.0 * kept[0])))
    assert check_sums(table, WORKLOAD, legal).oracle_us == pytest.approx(kept[0])
    with pytest.raises(NotRecorded):
        check_sums(table, WORKLOAD)


def test_a_workload_whose_mask_is_gone_is_left_out(tmp_path: Path) -> None:
    np.save(tmp_path / "mask.npy", np.ones((32, 32), bool))
    table = toy_table()
    workloads = (replace(WORKLOAD, mask=f"file:{tmp_path / 'mask.npy'}"), WORKLOAD)
    save_table(replace(table, header=replace(table.header, workloads=workloads)), tmp_path / "a.jsonl.gz")
    assert load_table(tmp_path / "a.jsonl.gz").header.workloads == workloads
    (tmp_path / "mask.npy").unlink()
    assert load_table(tmp_path / "a.jsonl.gz").header.workloads == (WORKLOAD,)
    assert len(table_for(WORKLOAD, tmp_path).trials) == len(table.trials)
    value = table.header.to_json()
    for mask in ("nothing", 3):
        with pytest.raises(StoreError):
            TableHeader.from_json(value | {"workloads": [WORKLOAD.to_json() | {"mask": mask}]})


def test_spearman() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 1000]) == pytest.approx(1.0)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486832980505138)
    assert spearman([1, 1], [1, 2]) == 0.0


def test_the_tables_that_ship_cover_their_workloads() -> None:
    assert sum(len(table.header.workloads) for table in recorded_tables()) >= 6
    for table in recorded_tables():
        assert all(table.covers(workload) for workload in table.header.workloads)


def test_a_table_covers_what_its_runs_make_up() -> None:
    table = synthetic_table(LARGE_SCORES)
    assert table.covers(replace(LARGE_SCORES, layers=3))
    assert not table.covers(replace(LARGE_SCORES, mask="causal"))
    without = tuple(trial for trial in table.trials if trial.choice is not None and trial.choice.run != Run(14, 14))
    assert RecordedTable(table.header, without).covers(LARGE_SCORES)
    without = tuple(trial for trial in without if trial.choice is not None and trial.choice.run != Run(13, 14))
    assert not RecordedTable(table.header, without).covers(LARGE_SCORES)
