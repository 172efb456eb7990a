"""The live measurer without a GPU: a planted worker crashes, hangs and errs, and the search goes on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path

import pytest

from atoffer_rl.errors import CompileError, DeviceUnavailable
from atoffer_rl.kernels.child import Child
from atoffer_rl.kernels.compile_pool import CompilePool
from atoffer_rl.kernels.cubin_cache import CubinCache
from atoffer_rl.kernels.measurers.cuda import CudaMeasurer
from atoffer_rl.kernels.program import KernelProgram
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice, Scheme
from atoffer_rl.store import Store
from atoffer_rl.trial import ForwardRequest, SegmentRequest, Status, Trial
from atoffer_rl.workload import Workload
from tests.kernels import planted_jobs
from tests.kernels.paths import ROOT

WORKLOAD = Workload(batch=1, seq_len=16, heads=2, head_dim=32, ffn_dim=128)
OUT_GEMM = Run(7, 7)
Make = Callable[..., CudaMeasurer]


def request(kind: int, number: int = 0, run: Run = OUT_GEMM) -> SegmentRequest:
    return SegmentRequest(WORKLOAD, Choice(run, "toy", (("kind", kind), ("number", number))))


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.syspath_prepend(ROOT)
    made: list[CudaMeasurer] = []

    def measurer(anchors_us: tuple[float, ...] = (10.0,), limit_seconds: float = 20.0) -> CudaMeasurer:
        made.append(
            CudaMeasurer(
                Store(tmp_path / "store.db"),
                planted_jobs.toy_program,
                Child(planted_jobs.gpu_maker(tmp_path / "log", anchors_us), "planted"),
                CompilePool(1, limit_seconds=3.0, make_job=planted_jobs.make_compiler),
                CubinCache(tmp_path),
                limit_seconds,
            )
        )
        return made[-1]

    yield measurer
    for item in made:
        item.close()


def asked(tmp_path: Path) -> list[str]:
    return (tmp_path / "log").read_text().splitlines()


def test_every_failure_is_a_trial_and_the_search_goes_on(make: Make, tmp_path: Path) -> None:
    measurer = make(limit_seconds=1.0)
    kinds = {
        planted_jobs.CRASHES: Status.CRASHED,
        planted_jobs.HANGS: Status.TIMEOUT,
        planted_jobs.WRONG: Status.WRONG_RESULT,
        planted_jobs.RAISES: Status.LAUNCH_FAILED,
        planted_jobs.BREAKS: Status.CRASHED,
        planted_jobs.WONT_COMPILE: Status.COMPILE_FAILED,
        planted_jobs.COMPILER_DIES: Status.COMPILE_FAILED,
        99: Status.COMPILE_FAILED,
        planted_jobs.GOOD: Status.OK,
    }
    trials = measurer.measure([request(kind) for kind in kinds])
    assert [trial.status for trial in trials] == list(kinds.values())
    assert all(bool(trial.reason) != trial.ok for trial in trials)
    assert trials[-1].latency_us == 6.0
    assert trials[-1].samples_us == (5.0, 6.0, 7.0)
    assert trials[-1].seconds == pytest.approx(0.33)
    assert measurer.measure([request(planted_jobs.GOOD, 1)])[0].ok
    with Store(tmp_path / "store.db") as store:
        kept = {trial.choice: trial.status for trial in store.trials()}
    assert [kept[request(kind).choice] for kind in kinds] == list(kinds.values())


def test_what_is_known_is_not_measured_again(make: Make, tmp_path: Path) -> None:
    first = make()
    requests = [request(planted_jobs.GOOD, number) for number in range(3)] + [request(planted_jobs.WRONG)]
    assert first.known(requests[0]) is None
    trials = first.measure(requests)
    assert first.known(requests[0]) == trials[0]
    first.close()
    done = asked(tmp_path)
    second = make()
    assert [second.known(item) for item in requests] == trials
    assert second.measure(requests) == trials
    assert asked(tmp_path) == done
    more = second.measure([*requests, request(planted_jobs.GOOD, 9)])
    assert more[:4] == trials
    assert len(asked(tmp_path)) == len(done) + 3  # the new choice between two timings of the anchors
    again = second.measure_again(requests[:1])[0]
    assert second.known(requests[0]) == again


def test_a_crash_of_the_search_keeps_what_was_measured(make: Make, tmp_path: Path) -> None:
    measurer = make()

    def stop(trial: Trial) -> None:
        if trial.choice == request(planted_jobs.GOOD, 1).choice:
            raise KeyboardInterrupt

    measurer.on_trial = stop
    requests = [request(planted_jobs.GOOD, number) for number in range(4)]
    with pytest.raises(KeyboardInterrupt):
        measurer.measure(requests)
    measurer.on_trial = None
    assert [measurer.known(item) is not None for item in requests] == [True, True, False, False]
    assert all(trial.ok for trial in measurer.measure(requests))
    assert asked(tmp_path).count(str(requests[1].choice)) == 1


def test_a_failure_that_passes_is_kept_and_measured_again(make: Make) -> None:
    measurer = make(limit_seconds=1.0)
    kinds = [planted_jobs.DISTURBED, planted_jobs.COMPILER_DIES, planted_jobs.COMPILER_HANGS]
    lasting = [planted_jobs.WONT_COMPILE, planted_jobs.CRASHES, planted_jobs.RAISES]
    trials = measurer.measure([request(kind) for kind in (*kinds, *lasting)])
    assert [trial.transient for trial in trials] == [True] * 3 + [False] * 3
    assert {trial.answers for trial in measurer.store.trials()} == {trial.answers for trial in trials}
    assert [measurer.known(request(kind)) for kind in (*kinds, *lasting)] == [None] * 3 + trials[3:]
    again = measurer.measure([request(planted_jobs.DISTURBED), request(planted_jobs.WONT_COMPILE)])
    assert again[0].ok
    assert measurer.known(request(planted_jobs.DISTURBED)) == again[0]
    assert again[1] == trials[3]


@pytest.mark.parametrize("cached", [True, False])
def test_once_it_is_to_stop_only_the_running_trial_ends(make: Make, tmp_path: Path, cached: bool) -> None:
    measurer = make()
    requests = [request(planted_jobs.GOOD, number) for number in range(8)]
    if cached:
        measurer.measure(requests)
    before = len(list(measurer.store.trials()))
    measurer.should_stop = lambda: len(list(measurer.store.trials())) >= before + 2
    assert len(measurer.measure_again(requests)) == 2
    assert len(list(measurer.store.trials())) == before + 2
    assert asked(tmp_path)[-1] == "anchor"  # they say whether the last trials stand
    assert all(trial.ok for trial in make().measure(requests))


def test_nothing_is_measured_once_the_machine_has_changed(make: Make, tmp_path: Path) -> None:
    measurer = make(anchors_us=(10.0, 11.0))
    measurer.should_stop = lambda: measurer.watch.changes > 0
    requests = [request(planted_jobs.GOOD, number) for number in range(3)]
    measurer.measure_again(requests)
    assert asked(tmp_path) == ["anchor", *(str(item.choice) for item in requests), *["anchor"] * 3]


def test_trials_that_cannot_be_taken_again_say_that_anchors_disagreed(make: Make, tmp_path: Path) -> None:
    measurer = make(anchors_us=(10.0, 11.0, 10.0))
    measurer.should_stop = lambda: len(list(measurer.store.trials())) > 0
    trials = measurer.measure_again([request(planted_jobs.GOOD, number) for number in range(3)])
    assert [trial.detail for trial in trials] == [{"anchors_disagreed": 1}]
    assert asked(tmp_path).count("anchor") == 2


def test_trials_that_are_dropped_before_they_are_taken_again_say_that_anchors_disagreed(make: Make) -> None:
    measurer = make(anchors_us=(10.0, 11.0, 10.0))
    measurer.should_stop = lambda: len(measurer.watch.samples) >= 2
    trials = measurer.measure_again([request(planted_jobs.GOOD, number) for number in range(3)])
    assert [trial.detail for trial in trials] == [{"anchors_disagreed": 1}] * 3


SEARCH = """
import sys
from pathlib import Path
from atoffer_rl.kernels.child import Child
from atoffer_rl.kernels.compile_pool import CompilePool
from atoffer_rl.kernels.cubin_cache import CubinCache
from atoffer_rl.kernels.measurers.cuda import CudaMeasurer
from atoffer_rl.store import Store
from tests.kernels import planted_jobs
from tests.kernels.test_cuda_measurer import request
folder = Path(sys.argv[1])
measurer = CudaMeasurer(
    Store(folder / "store.db"),
    planted_jobs.toy_program,
    Child(planted_jobs.gpu_maker(folder / "log"), "planted"),
    CompilePool(1, make_job=planted_jobs.make_compiler),
    CubinCache(folder),
)
measurer.on_trial = lambda trial: print("trial", flush=True)
measurer.measure([request(planted_jobs.GOOD, number) for number in range(3)] + [request(planted_jobs.HANGS)])
"""


def test_a_killed_search_resumes_and_leaves_no_process(make: Make, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SEARCH, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as search:
        assert search.stdout is not None
        for _ in range(3):
            assert search.stdout.readline() == "trial\n"
        time.sleep(0.5)  # the worker hangs now
        os.kill(search.pid, signal.SIGKILL)
        # The children hold the pipe's other end: it closes when the last of them is gone.
        search.stdout.read()
    done = asked(tmp_path)
    requests = [request(planted_jobs.GOOD, number) for number in range(3)]
    assert all(trial.ok for trial in make().measure(requests))
    assert asked(tmp_path) == done


def test_trials_between_drifting_anchors_are_taken_again(make: Make, tmp_path: Path) -> None:
    measurer = make(anchors_us=(10.0, 11.0, 10.1))
    assert measurer.measure([request(planted_jobs.GOOD)])[0].ok
    word = str(request(planted_jobs.GOOD).choice)
    assert asked(tmp_path) == ["anchor", word, "anchor", "anchor", word, "anchor"]
    assert measurer.watch.changes == 0
    assert len(list(measurer.store.trials())) == 2


def test_clocks_that_follow_the_load_do_not_go_on_for_ever(make: Make, tmp_path: Path) -> None:
    measurer = make(anchors_us=(10.0, 11.0) * 10)
    assert measurer.measure([request(planted_jobs.GOOD)])[0].ok
    assert asked(tmp_path).count(str(request(planted_jobs.GOOD).choice)) == 3
    *_, last = measurer.store.trials()
    assert last.ok
    assert last.detail["anchors_disagreed"] == 3


def test_anchors_that_moved_for_good_become_the_reference(make: Make) -> None:
    measurer = make(anchors_us=(10.0, 11.0))
    assert measurer.measure([request(planted_jobs.GOOD)])[0].ok
    assert measurer.watch.changes == 1
    assert measurer.watch.reference is not None
    assert measurer.watch.reference.latencies_us == {"math": 11.0}


def test_a_worker_without_a_gpu_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    with Store(tmp_path / "store.db") as store, pytest.raises(DeviceUnavailable, match="no GPU here") as error:
        CudaMeasurer(store, worker=Child(planted_jobs.make_refusing, "planted"))
    assert "\n" not in str(error.value)


def test_a_measurer_that_cannot_begin_ends_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Child(planted_jobs.gpu_maker(tmp_path / "log"), "planted")

    def refuse(cache: CubinCache, program: KernelProgram, arch: str) -> bytes:
        assert worker.starts == 1
        raise CompileError("no headers")

    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setattr(CubinCache, "compiled", refuse)
    before = set(active_children())
    with Store(tmp_path / "store.db") as store, pytest.raises(CompileError, match="no headers"):
        CudaMeasurer(store, worker=worker)
    assert set(active_children()) == before


def test_forwards_share_the_machine_code_of_their_segments(make: Make) -> None:
    measurer = make()
    choices = tuple(request(planted_jobs.GOOD, 0, Run(index, index)).choice for index in range(15))
    broken = (replace(choices[0], parameters=(("kind", planted_jobs.WONT_COMPILE),)), *choices[1:])
    good, bad = measurer.measure([ForwardRequest(WORKLOAD, Scheme(scheme)) for scheme in (choices, broken)])
    assert (good.status, good.latency_us, good.kind) == (Status.OK, 1000.0, "forward")
    assert bad.status is Status.COMPILE_FAILED
    assert measurer.known(ForwardRequest(WORKLOAD, Scheme(choices))) == good
