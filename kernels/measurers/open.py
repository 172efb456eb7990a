"""Which measurer answers: the GPU at hand, or what was recorded."""

from pathlib import Path

from atoffer_rl.errors import AtofferError, DeviceUnavailable, WorkloadError
from atoffer_rl.kernels.choice_program import ProgramOf, template_program
from atoffer_rl.kernels.cubin_cache import CubinCache, cache_folder
from atoffer_rl.kernels.measurers.cuda import CudaMeasurer
from atoffer_rl.kernels.measurers.protocol import Measurer
from atoffer_rl.kernels.measurers.replay import ReplayMeasurer
from atoffer_rl.records import table_for
from atoffer_rl.store import Store
from atoffer_rl.workload import Workload

MEASURERS = ("auto", "cuda", "replay")


def default_store() -> Path:
    """Where live trials are kept unless the user says otherwise."""
    return cache_folder() / "trials.db"


def open_measurer(name: str, workload: Workload, store_path: Path | None = None) -> tuple[Measurer, str]:
    """The measurer called `name`, and a line that says who measures.

    Args:
        name: `cuda`, `replay`, or `auto`: `cuda` where there is a usable GPU, else `replay`.
        workload: What is to be measured.
        store_path: Where live trials are kept; `default_store()` if None.

    Raises:
        DeviceUnavailable: If `cuda` is asked for and cannot be had; names what is missing.
        NotRecorded: If there is no GPU, and no recorded table of `workload`.
        StoreError: If the store cannot be used, or a recorded table is damaged.
        AtofferError: If `name` is none of these.
        WorkloadError: If `workload` is something else.
    """
    if name not in MEASURERS:
        raise AtofferError(f"measurer must be one of {', '.join(MEASURERS)}, not {name!r}")
    if not isinstance(workload, Workload):
        raise WorkloadError(f"a measurer is opened for a Workload, not for {workload!r}")
    from atoffer_rl.kernels.machine import what_is_missing

    missing = "" if name == "replay" else what_is_missing()
    if name == "replay" or (name == "auto" and missing):
        measurer, line = _open_replay(workload, missing)
        return measurer, line + (f"; {store_path} is not used: replay keeps no trials" if store_path else "")
    return open_cuda(store_path or default_store())


def _open_replay(workload: Workload, missing: str) -> tuple[Measurer, str]:
    table = table_for(workload)
    reason = f"; live measurement lacks {missing}" if missing else ""
    line = f"measurer replay: latencies recorded on {table.device.name} (table {table.header.table}){reason}"
    return ReplayMeasurer(table), line


def open_cuda(
    store_path: Path, program_of: ProgramOf = template_program, cubin_folder: Path | None = None
) -> tuple[CudaMeasurer, str]:
    """The GPU at hand, and a line that says so.

    Args:
        store_path: Where trials are kept.
        program_of: From a choice to its program; picklable.
        cubin_folder: Where compiled kernels are kept; `cache_folder()` if None.

    Raises:
        DeviceUnavailable: If it cannot be had; names what is missing.
        StoreError: If the store cannot be used.
    """
    from atoffer_rl.kernels.machine import what_is_missing

    if missing := what_is_missing():
        raise DeviceUnavailable(
            f"live measurement needs {missing}; train, search and eval need none of it with --measurer replay"
        )
    store = Store(store_path)
    try:
        measurer = CudaMeasurer(store, program_of, cache=CubinCache(cubin_folder))
    except BaseException:
        store.close()
        raise
    return measurer, f"measurer cuda: live latencies of {measurer.device.name}, trials kept in {store_path}"
