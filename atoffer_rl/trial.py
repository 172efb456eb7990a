"""Requests for measurements and the trials that answer them."""

from dataclasses import asdict, dataclass, field
from enum import Enum
from math import inf
from typing import Any, Self, TypeAlias

from atoffer_rl.errors import StoreError
from atoffer_rl.run import Run
from atoffer_rl.scheme import PLAIN, Choice, Scheme
from atoffer_rl.signature import signature
from atoffer_rl.workload import Workload

PROTOCOL_VERSION = 1
Answers: TypeAlias = tuple[str, Choice | None, Scheme | None, str]
"""What a request asks and a trial answers: subject, choice, scheme, execution option."""


class Status(Enum):
    """What became of a measurement."""

    OK = "ok"
    COMPILE_FAILED = "compile_failed"
    LAUNCH_FAILED = "launch_failed"
    WRONG_RESULT = "wrong_result"
    TIMEOUT = "timeout"
    CRASHED = "crashed"


@dataclass(frozen=True)
class SegmentRequest:
    """Measure one choice in the context of `workload`."""

    workload: Workload
    choice: Choice
    execution: str = PLAIN

    @property
    def subject(self) -> str:
        """The signature that the latency depends on."""
        return signature(self.workload, self.choice.run)

    @property
    def scheme(self) -> None:
        """A segment has no scheme."""
        return None


@dataclass(frozen=True)
class ForwardRequest:
    """Measure the whole encoder forward of `workload` under `scheme`."""

    workload: Workload
    scheme: Scheme

    @property
    def subject(self) -> str:
        """The workload that the latency belongs to."""
        return f"workload={self.workload.key}"

    @property
    def choice(self) -> None:
        """A forward has no single choice."""
        return None

    @property
    def execution(self) -> str:
        """The scheme's execution option."""
        return self.scheme.execution


Request: TypeAlias = SegmentRequest | ForwardRequest


@dataclass(frozen=True)
class Machine:
    """Where and with what a trial was taken.

    Attributes:
        device: GPU name.
        uuid: The card's own identity.
        driver: Driver version.
        cuda: CUDA runtime version.
        compiler: Compiler and its version.
        libraries: Versions of the libraries that segments call.
    """

    device: str = ""
    uuid: str = ""
    driver: str = ""
    cuda: str = ""
    compiler: str = ""
    libraries: str = ""


@dataclass(frozen=True)
class Trial:
    """One measurement: what was asked, what happened, all samples.

    Attributes:
        subject: Signature (segment) or workload key (forward).
        choice: The segment's choice; None for a forward.
        scheme: The forward's scheme; None for a segment.
        execution: Execution option.
        status: What became of it.
        reason: One line on a failure, empty when ok.
        latency_us: Median of `samples_us`; None unless ok. A forward's is the whole encoder's.
        samples_us: Every timed replay.
        max_error: Largest absolute error seen while verifying.
        error_budget: What it was allowed to be.
        compile_seconds: Time the compiler took (0 when the cubin was cached).
        verify_seconds: Time verification took.
        measure_seconds: Time timing took.
        table: Identity of the table it belongs to: one machine, one warm card.
        source_hash: Hash of all text that decides the machine code.
        machine: Where it was taken.
        detail: Anything else worth keeping: clocks, temperature, a library algorithm's descriptor.
        taken: When, ISO 8601 UTC.
        protocol: Version of the measuring rules.
    """

    subject: str
    choice: Choice | None
    scheme: Scheme | None
    execution: str
    status: Status
    reason: str = ""
    latency_us: float | None = None
    samples_us: tuple[float, ...] = ()
    max_error: float | None = None
    error_budget: float | None = None
    compile_seconds: float = 0.0
    verify_seconds: float = 0.0
    measure_seconds: float = 0.0
    table: str = ""
    source_hash: str = ""
    machine: Machine = field(default_factory=Machine)
    detail: dict[str, Any] = field(default_factory=dict, hash=False)
    taken: str = ""
    protocol: int = PROTOCOL_VERSION

    @property
    def kind(self) -> str:
        """`segment` or `forward`."""
        return "segment" if self.choice is not None else "forward"

    @property
    def run(self) -> Run | None:
        """The segment's run."""
        return self.choice.run if self.choice is not None else None

    @property
    def ok(self) -> bool:
        """Whether there is a latency."""
        return self.status is Status.OK

    @property
    def seconds(self) -> float:
        """Measuring seconds: compile, verify and time."""
        return self.compile_seconds + self.verify_seconds + self.measure_seconds

    @property
    def answers(self) -> Answers:
        """What a request must equal to be answered by this trial in replay."""
        return self.subject, self.choice, self.scheme, self.execution

    def to_json(self) -> dict[str, Any]:
        """The trial as plain JSON values."""
        return asdict(self) | {
            "choice": self.choice.to_json() if self.choice else None,
            "scheme": self.scheme.to_json() if self.scheme else None,
            "status": self.status.value,
            "samples_us": list(self.samples_us),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """The trial that `to_json` wrote.

        Raises:
            StoreError: If it is not a trial.
        """
        try:
            trial = cls(
                **value
                | {
                    "choice": Choice.from_json(value["choice"]) if value["choice"] else None,
                    "scheme": Scheme.from_json(value["scheme"]) if value["scheme"] else None,
                    "status": Status(value["status"]),
                    "samples_us": tuple(value["samples_us"]),
                    "machine": Machine(**value["machine"]),
                }
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"not a trial: {error}") from error
        check_trial(trial)
        return trial


def check_trial(trial: Trial) -> None:
    """Accept a trial that has a latency if and only if it is ok: on disk anything may stand.

    Raises:
        StoreError: If that is not so.
    """
    latency_us = trial.latency_us
    measured = isinstance(latency_us, int | float) and 0 <= latency_us < inf
    if measured != trial.ok or not (measured or latency_us is None):
        raise StoreError(f"a trial with status {trial.status.value} cannot have the latency {latency_us!r}")


def request_key(request: Request) -> Answers:
    """What a trial's `answers` must equal to answer `request` in replay."""
    return request.subject, request.choice, request.scheme, request.execution
