"""Stores and trials for tests: made, damaged, and read as far as they can be."""

from pathlib import Path

import pytest

from atoffer_rl.errors import StoreError
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice, Scheme
from atoffer_rl.store import Store
from atoffer_rl.trial import Machine, SegmentRequest, Status, Trial
from atoffer_rl.workload import Workload

WORKLOAD = Workload(batch=2, seq_len=32, heads=2, head_dim=32, ffn_dim=128)
MACHINE = Machine("GPU", "uuid", "1", "13.0", "nvrtc", "cublas")
CHOICE = Choice(Run(7, 8), "gemm", (("tile", 64),))
SCHEME = Scheme(tuple(Choice(Run(i, i), "chain") for i in range(15)))


def segment_trial(choice: Choice = CHOICE, latency_us: float = 5.0) -> Trial:
    request = SegmentRequest(WORKLOAD, choice)
    return Trial(
        request.subject,
        choice,
        None,
        "plain",
        Status.OK,
        latency_us=latency_us,
        samples_us=(latency_us,),
        source_hash="abc",
        machine=MACHINE,
        detail={"sm_clock_mhz": 1980},
    )


def full_store(path: Path) -> Path:
    with Store(path) as store:
        store.add(segment_trial())
    return path


def one_line(error: pytest.ExceptionInfo[StoreError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def overwrite(path: Path, pages: list[int]) -> None:
    content = bytearray(path.read_bytes())
    for page in pages:
        content[4096 * (page - 1) : 4096 * page] = b"\xff" * 4096
    path.write_bytes(content)


def store_of_200(path: Path) -> tuple[int, list[int]]:
    """The root page of the index, and the pages that hold trials."""
    with Store(path) as store:
        for index in range(200):
            store.add(segment_trial(latency_us=index + 1.0))
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'trials_by_key'"
        (root,) = store._connection.execute(query).fetchone()
    content = path.read_bytes()
    pages = range(10, len(content) // 4096 + 1)
    return root, [page for page in pages if content[4096 * (page - 1)] == 13]


def salvaged(path: Path) -> tuple[list[float | None], int]:
    """The latencies that can be read, and how many trials cannot."""
    damage: list[StoreError] = []
    with Store(path, read_only=True, salvage=True) as store:
        return [trial.latency_us for trial in store.trials(damage.append)], len(damage)
