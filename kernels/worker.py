"""The process that owns the GPU: it verifies and times what it is sent, and may be killed at any moment."""

import gc
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from atoffer_rl.device import DeviceSpec
from atoffer_rl.errors import DisturbedTiming
from atoffer_rl.kernels.anchors import STREAM_BYTES, anchor_programs
from atoffer_rl.kernels.child import JobMaker, first_line
from atoffer_rl.kernels.choice_program import ProgramOf, template_program
from atoffer_rl.kernels.memory import lacks_memory
from atoffer_rl.kernels.neighbour import load_neighbour
from atoffer_rl.kernels.tasks import AnchorTask, ForwardTask, Greeting, Measured, SegmentTask, Task
from atoffer_rl.kernels.timing import Neighbour, SegmentContext, Timing, time_forward, time_launches
from atoffer_rl.operators import run_results, run_weights
from atoffer_rl.run import Run
from atoffer_rl.tensors import LENGTHS, layer_tensors, reads_lengths, run_inputs
from atoffer_rl.trial import TRANSIENT, Status
from atoffer_rl.workload import Workload

if TYPE_CHECKING:
    from atoffer_rl.kernels.encoder_memory import EncoderMemory
    from atoffer_rl.kernels.verifier import Verifier
    from atoffer_rl.kernels.verify import Verdict

SPIN_SECONDS = 0.1
WARM_SECONDS = 1.0
IDLE_SECONDS = 0.2
OTHERS_BYTES = 2 * 2**30
"""More than a process's own context and libraries take of the GPU's memory."""
CONTEXTS, VERIFIERS = 4, 2
"""Of the last runs so many are ready to be timed, and to be verified: compilers finish a little out of order."""


def gpu_job_maker(program_of: ProgramOf = template_program) -> JobMaker:
    """Makes the job function of a process that owns the GPU.

    Args:
        program_of: From a choice to its program; picklable. Tests plant kernels here.
    """
    return partial(_make_gpu_job, program_of)


def _make_gpu_job(program_of: ProgramOf) -> tuple[Callable[[Task], Measured], Greeting]:
    from atoffer_rl.kernels.machine import current_device, current_machine

    worker = GpuWorker(program_of, current_device())
    return worker.answer, Greeting(current_machine(), worker.device)


def _checked(verdict: "Verdict", verify_seconds: float) -> Measured:
    """What is known once something was verified: a wrong result, until it is timed."""
    return Measured(
        Status.WRONG_RESULT,
        verdict.reason,
        max_error=verdict.max_error,
        error_budget=verdict.error_budget,
        verify_seconds=verify_seconds,
    )


def timed_lengths(workload: Workload) -> dict[str, list[int]]:
    """The lengths that `workload` is timed on, for a trial's detail."""
    return {LENGTHS: workload.length_spec.typical(workload.batch).tolist()}


class GpuWorker:
    """Answers tasks on the current CUDA device.

    Args:
        program_of: From a choice to its program.
        device: The current device.
    """

    def __init__(self, program_of: ProgramOf, device: DeviceSpec) -> None:
        import cupy
        import torch

        from atoffer_rl.kernels.machine import Monitor

        torch.zeros(1, device="cuda")  # loaded before the first time limit begins
        self.device = device
        self._program_of = program_of
        self._cupy = cupy
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._monitor = Monitor(cupy.cuda.runtime.deviceGetPCIBusId(cupy.cuda.runtime.getDevice()))
        self._context = lru_cache(CONTEXTS)(self._new_context)
        self._verifier = lru_cache(VERIFIERS)(self._new_verifier)
        self._anchors: dict[str, Callable[[], None]] = {}
        self._neighbour: Neighbour | None = None
        self._memory: EncoderMemory | None = None
        self._seed = int.from_bytes(os.urandom(3))
        self._last_used = 0.0

    def answer(self, task: Task) -> Measured:
        """Do `task`; whatever goes wrong is an answer too."""
        try:
            return self._with_room(task)
        except Exception as error:  # noqa: BLE001  CuPy, torch, nvmath and the driver each raise their own
            return self._failure(error)
        finally:
            self._last_used = time.monotonic()

    def _with_room(self, task: Task) -> Measured:
        """Do `task`; if it lacks memory, once more without what is kept of earlier ones."""
        try:
            return self._do(task)
        except Exception as error:
            if not lacks_memory(error):
                raise
        self._free_memory()  # not while the error is handled: its frames hold tensors
        return self._do(task)

    def _do(self, task: Task) -> Measured:
        if isinstance(task, AnchorTask):
            return self._time_anchors(task)
        return self._segment(task) if isinstance(task, SegmentTask) else self._forward(task)

    def _failure(self, error: Exception) -> Measured:
        if self._context_broken():
            return Measured(Status.CRASHED, first_line(error), broken=True)
        passes = isinstance(error, DisturbedTiming) or (lacks_memory(error) and self._others_hold_memory())
        return Measured(Status.LAUNCH_FAILED, first_line(error), detail={TRANSIENT: True} if passes else {})

    def _free_memory(self) -> None:
        """Give back all device memory but the anchors' and the neighbour's."""
        import torch

        self._cupy.cuda.runtime.deviceSynchronize()
        self._context.cache_clear()
        self._verifier.cache_clear()
        self._memory = None
        gc.collect()
        torch.cuda.empty_cache()
        self._cupy.get_default_memory_pool().free_all_blocks()

    def _others_hold_memory(self) -> bool:
        """Whether other processes hold much of the GPU's memory; else what lacks memory will never fit."""
        import torch

        free, total = self._cupy.cuda.runtime.memGetInfo()
        own = self._cupy.get_default_memory_pool().total_bytes() + torch.cuda.memory_reserved()
        return bool(total - free - own > OTHERS_BYTES)

    def _context_broken(self) -> bool:
        """Whether the last error is sticky: it comes again from a call that cannot fail otherwise."""
        try:
            self._cupy.cuda.runtime.deviceSynchronize()
        except self._cupy.cuda.runtime.CUDARuntimeError:
            return True
        return False

    def _segment(self, task: SegmentTask) -> Measured:
        from atoffer_rl.kernels.launch import load_program

        workload, choice = task.request.workload, task.request.choice
        neighbour = self._timed_neighbour(task.neighbour)
        start = time.perf_counter()
        launchable = load_program(self._program_of(workload, choice), task.cubin)
        verdict = self._verifier(workload, choice.run).judge(launchable)
        verified = time.perf_counter()
        checked = _checked(verdict, verified - start)
        if not verdict.passed:
            return checked
        timing = self._context(workload, choice.run).time(self._stream, launchable, neighbour, task.replays)
        return replace(
            checked,
            status=Status.OK,
            samples_us=timing.samples_us,
            measure_seconds=time.perf_counter() - verified,
            detail=self._health()
            | {"neighbour_us": round(neighbour.latency_us, 3)}
            | ({"algorithm": launchable.descriptor} if launchable.descriptor else {})
            | (timed_lengths(workload) if reads_lengths(workload, choice.run) else {}),
        )

    def _forward(self, task: ForwardTask) -> Measured:
        from atoffer_rl.kernels.device_array import DeviceBytes
        from atoffer_rl.kernels.encoder import CompiledEncoder, addresses
        from atoffer_rl.kernels.launch import load_program
        from atoffer_rl.liveness import plan_buffers

        workload, scheme = task.request.workload, task.request.scheme
        start = time.perf_counter()
        programs = [self._program_of(workload, choice) for choice in scheme.choices]
        segments = [load_program(program, cubin) for program, cubin in zip(programs, task.cubins, strict=True)]
        encoder = CompiledEncoder(
            workload, scheme, segments, DeviceBytes(plan_buffers(workload, scheme.runs).peak_bytes)
        )
        memory = self._encoder_memory(workload)
        memory.poison()
        self._cupy.cuda.runtime.deviceSynchronize()
        forward = partial(
            encoder.forward,
            memory.x.data_ptr(),
            memory.weights,
            memory.out.data_ptr(),
            self._stream.ptr,
            **addresses(memory.sequences),
        )
        forward()
        self._stream.synchronize()
        verdict = memory.verdict()
        verified = time.perf_counter()
        checked = _checked(verdict, verified - start)
        if not verdict.passed:
            return checked
        timing = time_forward(self._stream, forward, workload.layers * len(segments), task.replays)
        return replace(
            checked,
            status=Status.OK,
            samples_us=timing.samples_us,
            measure_seconds=time.perf_counter() - verified,
            detail=self._health() | (timed_lengths(workload) if workload.padded else {}),
        )

    def _encoder_memory(self, workload: Workload) -> "EncoderMemory":
        from atoffer_rl.kernels.encoder_memory import EncoderMemory

        if self._memory is None or self._memory.workload != workload:
            self._memory = None  # freed before the next is made
            self._memory = EncoderMemory(workload, self._seed)
        return self._memory

    def _new_verifier(self, workload: Workload, run: Run) -> "Verifier":
        from atoffer_rl.kernels.verifier import Verifier

        return Verifier(workload, run, self._seed)

    def _new_context(self, workload: Workload, run: Run) -> SegmentContext:
        import torch

        from atoffer_rl.kernels.inputs import Inputs, draw_inputs, typical_lengths
        from atoffer_rl.kernels.packing import sequence_tensors
        from atoffer_rl.kernels.torch_dtypes import TORCH_DTYPES

        device, stored = torch.device("cuda", torch.cuda.current_device()), layer_tensors(workload)
        drawn = draw_inputs(workload, run, Inputs.RANDOM, self._seed, device)
        results = {
            name: torch.empty(stored[name].shape, dtype=TORCH_DTYPES[stored[name].dtype], device=device)
            for name in run_results(run)
        }
        if LENGTHS in drawn:
            drawn |= sequence_tensors(workload, typical_lengths(workload, device))
        activations = {name: drawn[name] for name in run_inputs(workload, run)}
        weights = {name: drawn[name] for name in run_weights(run)}
        context = SegmentContext(activations, weights, results, self.device.l2_bytes)
        torch.cuda.synchronize()  # what torch's stream writes is read on ours
        return context

    def _timed_neighbour(self, cubin: bytes) -> Neighbour:
        if self._neighbour is None:
            neighbour = load_neighbour(cubin)
            neighbour.time(self._stream)
            self._neighbour = neighbour
        return self._neighbour

    def _health(self) -> dict[str, int]:
        return asdict(self._monitor.health())

    def _time_anchors(self, task: AnchorTask) -> Measured:
        start = time.perf_counter()
        if not self._anchors:
            self._load_anchors(task.cubins)
        # What ran before, or nothing at all, leaves clocks of its own: the anchors' must be the anchors' doing.
        idle = time.monotonic() - self._last_used > IDLE_SECONDS
        self._spin(WARM_SECONDS if idle else SPIN_SECONDS)
        timings: dict[str, Timing] = {
            name: time_launches(self._stream, [launch]) for name, launch in self._anchors.items()
        }
        anchors_us = {name: timing.latency_us for name, timing in timings.items()}
        seconds = time.perf_counter() - start
        return Measured(Status.OK, anchors_us=anchors_us, measure_seconds=seconds, detail=self._health())

    def _load_anchors(self, cubins: Mapping[str, bytes]) -> None:
        from atoffer_rl.kernels.launch import load_program

        self._anchor_memory = self._cupy.random.random((2, STREAM_BYTES // 4), dtype=self._cupy.float32)
        pointers = {name: int(self._anchor_memory[row].data.ptr) for row, name in enumerate(("source", "target"))}
        for name, program in anchor_programs().items():
            launchable = load_program(program, cubins[name])
            self._anchors[name] = partial(launchable.launch, pointers, self._stream.ptr)
        self._cupy.cuda.runtime.deviceSynchronize()

    def _spin(self, seconds: float) -> None:
        """Keep the GPU busy with the anchors until its clocks are theirs."""
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            for launch in [*self._anchors.values()] * 20:
                launch()
            self._stream.synchronize()
