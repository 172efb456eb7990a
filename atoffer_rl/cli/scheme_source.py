"""Where commands take a scheme from: a file, or the recorded tables."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoffer_rl.cli.json_file import read_json
from atoffer_rl.device import DEFAULT_DEVICE, DeviceSpec
from atoffer_rl.errors import NotRecorded, SchemeError, WorkloadError
from atoffer_rl.records import RecordedTable, describe, table_for
from atoffer_rl.scheme import Scheme
from atoffer_rl.workload import Workload

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
        if meant is not None and meant.with_layers(space.workload.layers) != space.workload:
            raise SchemeError(f"it is for {describe(meant)}, but the options say {describe(space.workload)}")
        scheme = Scheme.from_json(_scheme_in(value))
        space.check(scheme)
    except (SchemeError, WorkloadError) as error:
        raise SchemeError(f"{path}: {error}") from error
    return scheme


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
