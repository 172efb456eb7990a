"""A small export that tests share."""

from pathlib import Path

import pytest

from atoffer_rl.device import H100
from atoffer_rl.kernels.export.writer import Export, write_export
from tests.kernels.export.small import SMALL, fused


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of the small workload."""
    made = tmp_path_factory.mktemp("export") / "scheme"
    return write_export(Export(SMALL, fused(SMALL), H100, ("sm_90a",), {}), made)
