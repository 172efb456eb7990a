"""What the GPU's process makes of errors; it needs no GPU for that."""

import pytest

from atoffer_rl.errors import DisturbedTiming, LaunchError
from atoffer_rl.kernels.tasks import AnchorTask, Measured, Task
from atoffer_rl.kernels.worker import GpuWorker
from atoffer_rl.trial import TRANSIENT, Status

TASK = AnchorTask({})
MEMORY = [
    "CUDA out of memory. Tried to allocate 2.00 GiB.",
    "Out of memory allocating 1,024 bytes (allocated so far: 512 bytes).",
    "cudaErrorMemoryAllocation: out of memory",
    "CUDA driver error CUDA_ERROR_OUT_OF_MEMORY",
]


class PlantedWorker(GpuWorker):
    """A worker without a GPU whose attempts end in `errors`, one by one, then in a latency."""

    def __init__(self, *errors: Exception, broken: bool = False, others: bool = False) -> None:
        self.errors = list(errors)
        self.broken = broken
        self.others = others
        self.freed = 0

    def _do(self, task: Task) -> Measured:
        if self.errors:
            raise self.errors.pop(0)
        return Measured(Status.OK, samples_us=(5.0,))

    def _free_memory(self) -> None:
        self.freed += 1

    def _context_broken(self) -> bool:
        return self.broken

    def _others_hold_memory(self) -> bool:
        return self.others


@pytest.mark.parametrize("text", MEMORY)
@pytest.mark.parametrize(("others", "detail"), [(True, {TRANSIENT: True}), (False, {})])
def test_a_lack_of_memory_is_met_by_freeing_it_once(text: str, others: bool, detail: dict[str, bool]) -> None:
    """What still lacks it then will never fit, unless others hold it."""
    worker = PlantedWorker(RuntimeError(text))
    assert worker.answer(TASK).status is Status.OK
    assert worker.freed == 1
    worker = PlantedWorker(RuntimeError(text), RuntimeError(text), others=others)
    answer = worker.answer(TASK)
    assert (answer.status, dict(answer.detail), answer.broken) == (Status.LAUNCH_FAILED, detail, False)
    assert worker.freed == 1


def test_disturbed_timings_are_transient_and_other_failures_are_not() -> None:
    assert PlantedWorker(DisturbedTiming("disturbed")).answer(TASK).detail == {TRANSIENT: True}
    other = PlantedWorker(LaunchError("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"))
    assert (other.answer(TASK).detail, other.freed) == ({}, 0)


def test_a_broken_context_is_a_crash_whatever_was_said() -> None:
    answer = PlantedWorker(DisturbedTiming("disturbed"), broken=True).answer(TASK)
    assert (answer.status, dict(answer.detail), answer.broken) == (Status.CRASHED, {}, True)
