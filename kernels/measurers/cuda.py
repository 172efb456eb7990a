"""Measures on the GPU at hand: compilers in a pool, one worker process that owns the GPU, every trial in the store."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import TypeAlias

from atoffer_rl.errors import DeviceUnavailable
from atoffer_rl.kernels.anchors import AnchorWatch, anchor_programs
from atoffer_rl.kernels.child import Child
from atoffer_rl.kernels.choice_program import ProgramOf, template_program
from atoffer_rl.kernels.compile_pool import CompilePool
from atoffer_rl.kernels.cubin_cache import CubinCache
from atoffer_rl.kernels.measurers.batch import Batch, ShouldStop, never
from atoffer_rl.kernels.neighbour import neighbour_program
from atoffer_rl.kernels.preparation import Item, Preparation
from atoffer_rl.kernels.tasks import AnchorTask, Greeting, Measured
from atoffer_rl.kernels.timing import MIN_REPLAYS
from atoffer_rl.kernels.worker import gpu_job_maker
from atoffer_rl.records import AnchorSample
from atoffer_rl.store import Store
from atoffer_rl.trial import Request, Status, Trial, request_key

LIMIT_SECONDS = 30.0
OnTrial: TypeAlias = Callable[[Trial], None]


class CudaMeasurer:
    """The GPU of this machine as a measurer.

    What the store holds for this machine and these sources is not measured again, unless it failed for a reason
    that passes. Each trial is in the store before the next begins. Anchor kernels are timed before, between and
    after trials; trials taken while they drift by more than 3% are taken again.

    Attributes:
        store: Where trials are kept.
        machine: Where they are taken.
        device: The GPU.
        watch: The anchors' timings.
        table: Identity that new trials carry.
        on_trial: Called with each new trial once it is stored.
        should_stop: Asked while measuring; once it says so, all but the running trial is dropped, and `measure_again`
            returns what is done.

    Args:
        store: Where trials are kept.
        program_of: From a choice to its program; picklable. Tests plant kernels here.
        worker: The process that owns the GPU.
        pool: The compilers.
        cache: Compiled kernels.
        limit_seconds: Time limit of one segment's trial.

    Raises:
        DeviceUnavailable: If the worker cannot use a GPU.
    """

    name = "cuda"

    def __init__(
        self,
        store: Store,
        program_of: ProgramOf = template_program,
        worker: Child | None = None,
        pool: CompilePool | None = None,
        cache: CubinCache | None = None,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        self.store = store
        self.table = ""
        self.on_trial: OnTrial | None = None
        self.should_stop: ShouldStop = never
        self.watch = AnchorWatch()
        self._limit_seconds = limit_seconds
        self._worker = worker or Child(gpu_job_maker(program_of), "atoffer-gpu")
        try:
            self._prepare(program_of, pool or CompilePool(), cache or CubinCache())
        except BaseException:
            self._worker.kill()  # whoever would close this measurer never gets it
            raise

    def _prepare(self, program_of: ProgramOf, pool: CompilePool, cache: CubinCache) -> None:
        """Start the worker, compile what every batch needs, and see what the store holds."""
        greeting = self._greeting()
        self.machine, self.device = greeting.machine, greeting.device
        arch = self.device.arch
        self._preparation = Preparation(program_of, pool, cache, arch)
        self._anchor_task = AnchorTask(
            {name: cache.compiled(program, arch) for name, program in anchor_programs().items()}
        )
        self._neighbour = cache.compiled(neighbour_program(), arch)
        self._seen = {trial.answers for trial in self.store.trials() if trial.machine == self.machine}

    def _greeting(self) -> Greeting:
        failed = self._worker.wait_started()
        if failed is not None:
            raise DeviceUnavailable(f"the GPU cannot be used: {failed.reason}; atoffer doctor says what is missing")
        greeting: Greeting = self._worker.greeting
        return greeting

    def known(self, request: Request) -> Trial | None:
        """The trial that the store holds for `request` on this machine with these sources, unless it is transient."""
        if request_key(request) not in self._seen:
            return None
        try:
            item = self._preparation.render(0, request, MIN_REPLAYS)
        except Exception:  # noqa: BLE001  what cannot be rendered says so when it is measured
            return None
        return self.store.find(request, self.machine, item.source_hash)

    def measure(self, requests: Sequence[Request]) -> list[Trial]:
        """One trial a request, in order; what the store holds is not measured again.

        Raises:
            DeviceUnavailable: If the GPU was lost for good, or a process cannot be started.
            StoreError: If a trial cannot be kept.
        """
        trials = [self.known(request) for request in requests]
        missing = [request for request, trial in zip(requests, trials, strict=True) if trial is None]
        fresh = iter(self.measure_again(missing))
        return [trial or next(fresh) for trial in trials]

    def measure_again(self, requests: Sequence[Request], replays: int = MIN_REPLAYS) -> list[Trial]:
        """New trials with `replays` samples, whatever the store holds; fewer once `should_stop` says so.

        Raises:
            DeviceUnavailable: If the GPU was lost for good, or a process cannot be started.
            StoreError: If a trial cannot be kept.
        """
        try:
            return self._batch().run([(request, replays) for request in requests])
        except BaseException:
            self._abandon()
            raise

    def time_anchors(self) -> AnchorSample:
        """Time the anchors now.

        Raises:
            DeviceUnavailable: If the GPU was lost for good, or a process cannot be started.
        """
        try:
            self._batch().time_anchors()
        except BaseException:
            self._abandon()
            raise
        return self.watch.samples[-1]

    def _batch(self) -> Batch:
        return Batch(
            self._preparation,
            self._worker,
            self.watch,
            self._anchor_task,
            self._neighbour,
            self._limit_seconds,
            self._keep,
            self.should_stop,
        )

    def _abandon(self) -> None:
        """Stop whatever is being done: the next call begins afresh."""
        self._preparation.abandon()
        self._worker.kill()

    def _keep(self, item: Item, measured: Measured) -> Trial:
        trial = self._trial(item, measured)
        self.store.add(trial)
        self._seen.add(trial.answers)
        if self.on_trial is not None:
            self.on_trial(trial)
        return trial

    def _trial(self, item: Item, measured: Measured) -> Trial:
        samples = tuple(round(sample, 3) for sample in measured.samples_us)
        return Trial(
            subject=item.request.subject,
            choice=item.request.choice,
            scheme=item.request.scheme,
            execution=item.request.execution,
            status=measured.status,
            reason=measured.reason,
            latency_us=median(samples) if measured.status is Status.OK else None,
            samples_us=samples,
            max_error=measured.max_error,
            error_budget=measured.error_budget,
            compile_seconds=item.compile_seconds,
            verify_seconds=measured.verify_seconds,
            measure_seconds=measured.measure_seconds,
            table=self.table,
            source_hash=item.source_hash,
            machine=self.machine,
            detail=dict(measured.detail),
            taken=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def close(self) -> None:
        """End the worker and the compilers, close the store."""
        self._abandon()
        self.store.close()
