"""Where commands take a scheme from: a file, or the recorded tables."""

from pathlib import Path
from typing import Any

from atoffer_rl.cli.json_file import read_json
from atoffer_rl.errors import NotRecorded, SchemeError
from atoffer_rl.records import RecordedTable, describe, table_for
from atoffer_rl.scheme import Scheme
from atoffer_rl.workload import Workload


def read_scheme(path: Path, workload: Workload) -> Scheme:
    """The scheme in a JSON file: by itself, a search's result that holds it beside its workload, or a manifest.

    Raises:
        SchemeError: If the file cannot be read, holds none, or says that it is for another workload.
    """
    value = read_json(path, SchemeError, "scheme")
    if isinstance(value, dict) and "workload" in value:
        meant = Workload.from_json(value["workload"])
        if meant.with_layers(workload.layers) != workload:
            raise SchemeError(f"{path} is for {describe(meant)}, but the options say {describe(workload)}")
    return Scheme.from_json(_scheme_in(value))


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
