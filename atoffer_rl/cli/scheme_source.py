"""Where commands take a scheme from: a file, or the recorded tables."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoffer_rl.cli.json_file import read_json
from atoffer_rl.device import DEFAULT_DEVICE, DeviceSpec
from atoffer_rl.errors import NotRecorded, SchemeError, WorkloadError
from atoffer_rl.quote import quote
from atoffer_rl.records import RecordedTable, table_for
from atoffer_rl.scheme import Scheme
from atoffer_rl.trial import Trial
from atoffer_rl.workload import FIELD_NAMES, Workload

if TYPE_CHECKING:
    from atoffer_rl.kernels.legal_space import LegalSpace


def read_scheme(path: Path, space: "LegalSpace") -> Scheme:
    """The scheme in a JSON file: by itself, a search's result that holds it beside its workload, or a manifest.

    Raises:
        SchemeError: If the file cannot be read, holds none or an illegal one, or says that it is for another workload.
    """
    value = read_json(path, SchemeError, "scheme")
    try:
        meant = Workload.from_json(value["workload"]) if isinstance(value, dict) and "workload" in value else None
        if meant is not None:
            _check_same(meant, space.workload)
        scheme = Scheme.from_json(_scheme_in(value))
        space.check(scheme)
    except (SchemeError, WorkloadError) as error:
        raise SchemeError(f"{path}: {error}") from error
    return scheme


def _check_same(meant: Workload, asked: Workload) -> None:
    """Refuse a scheme that is meant for another layer; how many layers there are does not matter."""
    names = [name for name in FIELD_NAMES if name != "layers" and _sense(meant, name) != _sense(asked, name)]
    if names:
        ours, theirs = (", ".join(f"{name} {getattr(item, name)}" for name in names) for item in (meant, asked))
        raise SchemeError(f"it is for {ours}, but the options say {theirs}")


def _sense(workload: Workload, name: str) -> object:
    """What a field says: of a mask's file its content, wherever it is."""
    return workload.mask_spec.identity if name == "mask" else getattr(workload, name)


def _scheme_in(value: Any) -> Any:
    match value:
        case {"schemes": {"best": {"scheme": scheme}}} | {"scheme": scheme}:
            return scheme
    return value


def recorded_table(workload: Workload) -> RecordedTable | None:
    """The recorded table that covers `workload`; None if it was never recorded."""
    try:
        return table_for(workload)
    except NotRecorded:
        return None


def device_of(table: RecordedTable | None) -> DeviceSpec:
    """The device that `table` was recorded on; the default one without a table."""
    return table.device if table is not None else DEFAULT_DEVICE


def failure(trial: Trial) -> str:
    """The status and reason of a trial that failed."""
    return f"{trial.status.value}: {quote(trial.reason, str)}" if trial.reason else trial.status.value
