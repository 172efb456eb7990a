"""Recording with a planted worker: complete, resumed, honest about time and drift."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from atoffer_rl.errors import StoreError
from atoffer_rl.kernels import recorder
from atoffer_rl.kernels.child import Child
from atoffer_rl.kernels.compile_pool import CompilePool
from atoffer_rl.kernels.cubin_cache import CubinCache
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.measurers.cuda import CudaMeasurer
from atoffer_rl.kernels.measurers.replay import ReplayMeasurer
from atoffer_rl.kernels.recording import record_table
from atoffer_rl.kernels.registry import ALL_RUNS
from atoffer_rl.records import load_table
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.store import Store
from atoffer_rl.table_summary import best_recorded, check_sums, latencies
from atoffer_rl.trial import SegmentRequest
from atoffer_rl.workload import Workload
from tests.kernels import planted_jobs
from tests.kernels.paths import ROOT

FIRST = Workload(batch=2, seq_len=32, heads=2, head_dim=32, ffn_dim=128, layers=2)
SECOND = replace(FIRST, mask="causal")
RUNS = frozenset(run for run in ALL_RUNS if run.first == run.last) | {Run(2, 5), Run(8, 9), Run(3, 4)}
Make = Callable[..., CudaMeasurer]


def toy_choices(space: LegalSpace, run: Run) -> tuple[Choice, ...]:
    kinds = (planted_jobs.GOOD, planted_jobs.GOOD, planted_jobs.GOOD, planted_jobs.GOOD, planted_jobs.WRONG)
    return tuple(Choice(run, "chain", (("kind", kind), ("number", index))) for index, kind in enumerate(kinds))


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setattr(LegalSpace, "runs", RUNS)
    monkeypatch.setattr(LegalSpace, "choices", toy_choices)
    made: list[CudaMeasurer] = []

    def measurer(anchors_us: tuple[float, ...] = (10.0,), log: str = "log") -> CudaMeasurer:
        made.append(
            CudaMeasurer(
                Store(tmp_path / "store.db"),
                planted_jobs.toy_program,
                Child(planted_jobs.gpu_maker(tmp_path / log, anchors_us), "planted"),
                CompilePool(1, make_job=planted_jobs.make_compiler),
                CubinCache(tmp_path),
            )
        )
        return made[-1]

    yield measurer
    for item in made:
        item.close()


def test_a_table_is_complete_and_shares_signatures(make: Make, tmp_path: Path) -> None:
    measurer = make()
    phases: dict[str, tuple[int, int]] = {}
    done = record_table(
        measurer,
        [FIRST, SECOND],
        "toy",
        forwards=40,
        folder=tmp_path / "records",
        progress=lambda phase, count, total: phases.update({phase: (count, total)}),
    )
    assert done.complete
    assert done.path == tmp_path / "records" / "toy.jsonl.gz"
    table = load_table(tmp_path / "records" / "toy.jsonl.gz")
    assert table.header.workloads == (FIRST, SECOND)
    assert len(table.header.anchors) >= 3
    masked = sum(run.first <= 3 <= run.last for run in RUNS)
    assert phases["segments"] == (5 * (len(RUNS) + masked),) * 2
    assert phases["forwards"] == (80, 80)
    for workload in (FIRST, SECOND):
        assert table.covers(workload)
        assert len(table.segments(workload)) == 5 * len(RUNS)
        assert len(table.forwards(workload)) == 40
        assert check_sums(table, workload).forwards == 40
        best = best_recorded(table, workload)[0]
        trials = ReplayMeasurer(table).measure([SegmentRequest(workload, choice) for choice in best.choices])
        assert all(len(trial.samples_us) >= recorder.BEST_REPLAYS for trial in trials)
    assert {trial.table for trial in table.trials} == {table.header.table}


def test_an_interrupted_recording_goes_on(make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "records"
    first = make()
    recorded = 0

    def interrupt(phase: str, done: int, total: int) -> None:
        nonlocal recorded
        recorded = done
        if done >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record_table(first, [FIRST], "toy", forwards=5, folder=folder, progress=interrupt)
    first.close()
    assert not list(folder.iterdir())
    lines: list[str] = []
    second = make(anchors_us=(10.2,), log="second")
    done = record_table(second, [FIRST], "toy", forwards=5, folder=folder, tell=lines.append)
    assert "going on with table" in lines[0]
    assert done.complete
    segments = [line for line in (tmp_path / "second").read_text().split("\n") if line.startswith("[")]
    assert len(set(segments)) >= 5 * len(RUNS) - recorded
    assert sum("number=4" in line for line in segments) < len(RUNS)
    third = make(log="third")
    again = record_table(third, [FIRST], "toy", forwards=5, folder=folder)
    assert (again.measured, again.complete) == (0, True)


def test_an_interrupt_among_the_finalists_loses_no_samples(make: Make, tmp_path: Path) -> None:
    """Nor does what a kill leaves between a round's trial and the trial that joins it with the rounds before."""

    def interrupt(phase: str, done: int, total: int) -> None:
        if (phase, done) == ("finalists, round 3", 2):
            raise KeyboardInterrupt

    first = make()
    with pytest.raises(KeyboardInterrupt):
        record_table(first, [FIRST], "toy", forwards=5, folder=tmp_path, progress=interrupt)
    newest = {trial.answers: trial for trial in first.store.trials() if trial.kind == "forward"}
    assert sorted(len(trial.samples_us) // recorder.FORWARD_REPLAYS for trial in newest.values()) == [2, 2, 2, 3, 3]
    for trial in newest.values():
        first.store.add(replace(trial, samples_us=trial.samples_us[: recorder.FORWARD_REPLAYS]))
    first.close()
    done = record_table(make(log="second"), [FIRST], "toy", forwards=5, folder=tmp_path)
    assert done.complete
    assert done.measured == 3 + 2 * 5
    assert done.table is not None
    samples = {len(trial.samples_us) for trial in done.table.forwards(FIRST).values()}
    assert samples == {recorder.FORWARD_REPLAYS * recorder.FINALIST_ROUNDS}


def test_failures_that_pass_are_measured_again_by_the_next_call(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbed = Choice(Run(8, 8), "chain", (("kind", planted_jobs.DISTURBED), ("number", 5)))

    def choices(space: LegalSpace, run: Run) -> tuple[Choice, ...]:
        return (*toy_choices(space, run), disturbed) if run == disturbed.run else toy_choices(space, run)

    monkeypatch.setattr(LegalSpace, "choices", choices)
    measurer = make()
    first = record_table(measurer, [FIRST], "toy", forwards=2, folder=tmp_path)
    assert not first.complete
    assert first.table is not None
    assert first.table.segments(FIRST)[disturbed].transient
    second = record_table(measurer, [FIRST], "toy", forwards=2, folder=tmp_path)
    assert second.complete
    assert second.table is not None
    assert second.table.segments(FIRST)[disturbed].ok
    assert record_table(measurer, [FIRST], "toy", forwards=2, folder=tmp_path).measured == 0


def test_what_anchors_disagreed_about_is_measured_again_by_the_next_call(make: Make, tmp_path: Path) -> None:
    measurer = make()
    first = record_table(measurer, [FIRST], "toy", forwards=2, folder=tmp_path)
    assert first.table is not None
    good = next(trial for trial in first.table.segments(FIRST).values() if trial.ok)
    for takes, again in ((1, True), (3, False)):  # three takes are all there are
        measurer.store.add(replace(good, detail={"anchors_disagreed": takes}))
        assert (record_table(measurer, [FIRST], "toy", forwards=2, folder=tmp_path).measured > 0) == again


def test_other_anchors_begin_another_table(make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "records"
    first = record_table(make(), [FIRST], "toy", forwards=5, folder=folder)
    lines: list[str] = []
    other = make(anchors_us=(11.0,), log="second")
    second = record_table(other, [FIRST], "toy", forwards=5, folder=folder, tell=lines.append)
    assert "a new table is begun" in lines[0]
    assert "10.0%" in lines[0]
    assert second.measured == first.measured
    assert first.table is not None
    assert second.table is not None


def test_a_machine_that_changes_for_good_begins_a_new_table(make: Make, tmp_path: Path) -> None:
    lines: list[str] = []
    measurer = make(anchors_us=(10.0, 10.0, 11.0))
    done = record_table(measurer, [FIRST], "toy", forwards=5, folder=tmp_path / "records", tell=lines.append)
    assert "changed by more than 3%" in lines[0]
    assert "a new table is begun" in lines[1]
    assert done.complete
    assert done.table is not None
    assert done.table.header.anchors[0].latencies_us != measurer.watch.samples[0].latencies_us
    tasks = (tmp_path / "log").read_text().splitlines()
    assert done.measured == sum(task != "anchor" for task in tasks)


def test_it_stops_when_time_is_up(make: Make, tmp_path: Path) -> None:
    done = record_table(make(), [FIRST], "toy", seconds=0.0, folder=tmp_path / "records")
    assert not done.complete
    assert done.table is None
    assert done.measured < 5
    done = record_table(make(log="second"), [FIRST], "toy", forwards=5, folder=tmp_path / "records")
    assert done.complete


def test_a_folder_that_cannot_be_written_is_found_out_at_once(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="choose another --folder"):
        record_table(make(), [FIRST], "toy", folder=tmp_path / "file")


@pytest.mark.parametrize(
    "name", ["", "a/../../b", "a b", "x" * 101, "\u6f22" * 100], ids=["none", "path", "space", "long", "wide"]
)
def test_a_name_that_cannot_be_a_files_is_found_out_at_once(make: Make, tmp_path: Path, name: str) -> None:
    measurer = make()
    with pytest.raises(StoreError, match="choose a --name of 1 to 100 letters"):
        record_table(measurer, [FIRST], name, folder=tmp_path / "records")
    assert not (tmp_path / "records").exists()
    assert not list(measurer.store.trials())


def test_a_table_whose_mask_is_gone_is_in_nobodys_way(make: Make, tmp_path: Path) -> None:
    measurer, folder = make(), tmp_path / "records"
    first = record_table(measurer, [FIRST], "toy", forwards=2, folder=folder)
    np.save(tmp_path / "mask.npy", np.ones((32, 32), bool))
    masked = (FIRST, replace(FIRST, mask=f"file:{tmp_path / 'mask.npy'}"))
    assert first.table is not None
    other = replace(first.table.header, table="other", workloads=masked)
    measurer.store.save_table("other", other.to_json())
    (tmp_path / "mask.npy").unlink()
    again = record_table(measurer, [FIRST], "toy", forwards=2, folder=folder)
    assert again.table is not None
    assert again.table.header.table == first.table.header.table
    assert again.measured == 0


def test_latencies_leave_failures_out(make: Make, tmp_path: Path) -> None:
    done = record_table(make(), [FIRST], "toy", forwards=1, folder=tmp_path)
    assert done.table is not None
    by_choice = latencies(done.table.segments(FIRST))
    assert len(by_choice) == 4 * len(RUNS)
    assert all(choice["kind"] == planted_jobs.GOOD for choice in by_choice)


def test_doubtful_choices_are_measured_again_with_more_samples(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubted = Choice(Run(8, 8), "chain", (("kind", planted_jobs.GOOD), ("number", 3)))
    monkeypatch.setattr(recorder, "doubtful", lambda latencies_us: [doubted])
    record_table(make(), [FIRST], "doubt", forwards=2, folder=tmp_path)
    trial = load_table(tmp_path / "doubt.jsonl.gz").segments(FIRST)[doubted]
    assert len(trial.samples_us) == recorder.BEST_REPLAYS
