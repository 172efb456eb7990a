"""Where commands take a scheme from: a file, or the recorded tables."""

import json
from pathlib import Path

from atoffer_rl.errors import NotRecorded, SchemeError
from atoffer_rl.records import RecordedTable, describe, table_for
from atoffer_rl.scheme import Scheme
from atoffer_rl.workload import Workload


def read_scheme(path: Path, workload: Workload) -> Scheme:
    """The scheme in a JSON file, by itself or under the key `scheme` (beside its workload, in a search's result).

    Raises:
        SchemeError: If the file cannot be read, holds none, or says that it is for another workload.
    """
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise SchemeError(f"cannot read scheme {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise SchemeError(f"{path} is not JSON: {error}") from error
    if isinstance(value, dict) and "workload" in value:
        meant = Workload.from_json(value["workload"])
        if meant.with_layers(workload.layers) != workload:
            raise SchemeError(f"{path} is for {describe(meant)}, but the options say {describe(workload)}")
    return Scheme.from_json(value.get("scheme", value) if isinstance(value, dict) else value)


def recorded_table(workload: Workload) -> RecordedTable | None:
    """The recorded table that covers `workload`; None if it was never recorded."""
    try:
        return table_for(workload)
    except NotRecorded:
        return None
