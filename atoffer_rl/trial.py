"""Requests for measurements and the trials that answer them."""

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Self, TypeAlias

from atoffer_rl.errors import SchemeError, StoreError
from atoffer_rl.operators import OPERATOR_COUNT
from atoffer_rl.quote import quote
from atoffer_rl.run import Run
from atoffer_rl.scheme import EXECUTION_OPTIONS, PLAIN, Choice, Scheme
from atoffer_rl.signature import signature
from atoffer_rl.workload import Workload

PROTOCOL_VERSION = 3
"""3: a neighbour's own latency is what it adds to a stream of long kernels (kernels/timing.py); in 2 it was that of a
stream of neighbours alone. 2: a segment is timed after a neighbour (kernels/neighbour.py); in 1 it was after itself."""
Answers: TypeAlias = tuple[str, Choice | None, Scheme | None, str]
"""What a request asks and a trial answers: subject, choice, scheme, execution option."""
LONGEST_US, LONGEST_SECONDS = 1e10, 1e7
"""Nothing that was measured takes longer."""
LARGEST_WHOLE = 2**63 - 1
TRANSIENT = "transient"
"""In the detail of a failure that says nothing of what was asked: it is to be measured again."""
ANCHORS_DISAGREED = "anchors_disagreed"
"""In the detail of a trial that was taken while anchors disagreed: how often it was taken."""


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
        source_hash: Hash of all that was executed: sources, launches and plans.
        machine: Where it was taken.
        detail: Anything else worth keeping: clocks, temperature, a library algorithm's descriptor; `anchors_disagreed`,
            how often it was taken while they did; `transient`, that it failed for a reason that passes.
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
    def transient(self) -> bool:
        """Whether it failed for a reason that passes: a store does not answer with it, whoever asks measures again."""
        return not self.ok and bool(self.detail.get(TRANSIENT))

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
                    "choice": Choice.from_json(value["choice"]) if value["choice"] is not None else None,
                    "scheme": Scheme.from_json(value["scheme"]) if value["scheme"] is not None else None,
                    "status": Status(value["status"]),
                    "samples_us": tuple(value["samples_us"]),
                    "machine": Machine(**value["machine"]),
                    "protocol": value["protocol"],
                }
            )
        except SchemeError as error:
            raise StoreError(f"not a trial: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError("not a trial: a field is missing, unknown or of the wrong type") from error
        check_trial(trial)
        return trial


def check_trial(trial: Trial) -> None:
    """Accept a trial that a measurement can have left: on disk anything may stand.

    Raises:
        StoreError: If a field is of the wrong type or out of range, or fields contradict one another.
    """
    _check_asked(trial)
    for name in ("reason", "table", "source_hash", "taken"):
        _require(isinstance(getattr(trial, name), str), name, getattr(trial, name))
    check_machine(trial.machine)
    _require(isinstance(trial.detail, dict), "detail", trial.detail)
    _require(type(trial.protocol) is int and _is_number(trial.protocol), "protocol", trial.protocol)
    for name in ("compile_seconds", "verify_seconds", "measure_seconds"):
        value = getattr(trial, name)
        _require(_is_number(value) and 0 <= value <= LONGEST_SECONDS, name, value)
    for name in ("max_error", "error_budget"):
        value = getattr(trial, name)
        # What a wrong result is off by may be infinite, or no number.
        _require(value is None or (_is_number(value) and not value < 0), name, value)
    samples = trial.samples_us
    numbers = set(map(type, samples)) <= {int, float}
    _require(numbers and all(0 < sample <= LONGEST_US for sample in samples), "samples_us", list(samples))
    if is_latency(trial.latency_us) != trial.ok or not (trial.ok or trial.latency_us is None):
        raise StoreError(f"a trial with status {trial.status.value} cannot have the latency {quote(trial.latency_us)}")


def _check_asked(trial: Trial) -> None:
    _require(isinstance(trial.subject, str) and bool(trial.subject), "subject", trial.subject)
    if (trial.choice is None) == (trial.scheme is None):
        raise StoreError("a trial has either a choice or a scheme")
    execution = trial.scheme.execution if trial.scheme is not None else trial.execution
    _require(trial.execution in EXECUTION_OPTIONS and trial.execution == execution, "execution", trial.execution)
    for choice in trial.scheme.choices if trial.scheme is not None else (trial.choice,):
        if choice is not None:
            names = [name for name, _ in choice.parameters]
            right = 0 <= choice.run.first <= choice.run.last < OPERATOR_COUNT
            _require(right and bool(choice.template) and len(set(names)) == len(names), "choice", choice)


def check_machine(machine: Machine) -> None:
    """Accept a machine whose fields are texts.

    Raises:
        StoreError: If one is not.
    """
    for name, value in vars(machine).items():
        _require(isinstance(value, str), f"machine's {name}", value)


def is_latency(value: Any) -> bool:
    """Whether `value` is a time that something can have taken on a GPU, in microseconds."""
    return _is_number(value) and 0 < value <= LONGEST_US


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) <= LARGEST_WHOLE)


def _require(right: bool, name: str, value: object) -> None:
    if not right:
        raise StoreError(f"a trial's {name} cannot be {quote(value, str if isinstance(value, Choice) else repr)}")


def request_key(request: Request) -> Answers:
    """What a trial's `answers` must equal to answer `request` in replay."""
    return request.subject, request.choice, request.scheme, request.execution
