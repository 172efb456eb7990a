"""What was measured of a workload: the table that ships, or the trials of a store."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from atoffer_rl.cli.scheme_source import recorded_table
from atoffer_rl.device import DEFAULT_DEVICE, KNOWN_DEVICES, DeviceSpec
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.signature import signature
from atoffer_rl.store import Store
from atoffer_rl.trial import Machine, Trial
from atoffer_rl.workload import Workload


@dataclass(frozen=True)
class KnownTrials:
    """Trials of a workload's choices.

    Attributes:
        name: Where they are from, as people are told.
        device: The GPU that they were taken on.
        trials: One for each choice, of the kernels that the choices are now.
    """

    name: str
    device: DeviceSpec
    trials: dict[Choice, Trial]


def measured_of(workload: Workload, store: Path | None) -> KnownTrials | None:
    """What is known of `workload`, None if nothing: by `store` if it is given, else by its table or the usual store.

    Raises:
        StoreError: If a store is not there or cannot be read, or a table is damaged.
    """
    if store is not None:
        return of_store(workload, store)
    table = recorded_table(workload)
    if table is not None:
        return KnownTrials(f"the recorded table {table.header.table}", table.device, table.segments(workload))
    from atoffer_rl.kernels.measurers.open import default_store

    return of_store(workload, path) if (path := default_store()).exists() else None


def of_store(workload: Workload, path: Path) -> KnownTrials | None:
    """What the store says of the card that measured `workload` last.

    Raises:
        StoreError: If the store is not there or cannot be read.
    """

    @cache
    def subject(run: Run) -> str:
        return signature(workload, run)

    with Store(path, read_only=True) as store:
        trials = [
            trial for trial in store.trials() if trial.choice is not None and trial.subject == subject(trial.choice.run)
        ]
    if not trials:
        return None
    machine = max(trials, key=lambda trial: trial.taken).machine
    device = _device_of(machine)
    found = _current(workload, device, [trial for trial in trials if trial.machine == machine])
    return KnownTrials(f"the trials of {path}", device, found) if found else None


def _current(workload: Workload, device: DeviceSpec, trials: list[Trial]) -> dict[Choice, Trial]:
    """The last trial of each legal choice, if it is of the program that the choice is now."""
    from atoffer_rl.kernels.choice_program import template_program
    from atoffer_rl.kernels.cubin_cache import program_hash
    from atoffer_rl.kernels.legal_space import LegalSpace

    space = LegalSpace(workload, device)

    @cache
    def hash_now(choice: Choice) -> str:
        return program_hash(template_program(workload, choice))

    return {
        trial.choice: trial
        for trial in trials
        if trial.choice in space and trial.choice is not None and trial.source_hash == hash_now(trial.choice)
    }


def _device_of(machine: Machine) -> DeviceSpec:
    """The model that `machine` is; the default one if it is neither known nor here."""
    from atoffer_rl.kernels.machine import current_device, what_is_missing

    if not what_is_missing() and current_device().name == machine.device:
        return current_device()
    return {device.name: device for device in KNOWN_DEVICES}.get(machine.device, DEFAULT_DEVICE)
