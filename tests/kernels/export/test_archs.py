"""Which targets an export is refused for, before anything is made."""

from pathlib import Path

import pytest

from atoffer_rl.device import H100
from atoffer_rl.errors import ExportError
from atoffer_rl.kernels.export.archs import check_runs_on
from atoffer_rl.kernels.export.writer import Export, write_export
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.program import KernelProgram
from atoffer_rl.kernels.registry import template_choices, template_named
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice, Scheme
from atoffer_rl.workload import Workload
from tests.kernels.export.small import SMALL, fused

LARGE = Workload(batch=16, seq_len=256)


@pytest.mark.parametrize("arch", ["", "sm_1", "compute_90", "sm_90a ", "sm_90a\n", "sm_٩٠", "..", "../../x"])
def test_what_is_no_arch_is_told_before_anything_is_made(tmp_path: Path, arch: str) -> None:
    with pytest.raises(ExportError, match="is no arch: name an arch such as sm_90a"):
        write_export(Export(SMALL, fused(SMALL), H100, ("sm_90a", arch), {}), tmp_path / "x" / "y")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100a"])
def test_an_arch_without_a_kernels_instructions_is_refused(tmp_path: Path, arch: str) -> None:
    workload = Workload(batch=2, seq_len=64, heads=2, head_dim=64, ffn_dim=64, layers=2)
    (blocks, *_) = template_choices("block", workload, Run(2, 6))
    others = [choice for choice in fused(workload).choices if choice.run != blocks.run]
    scheme = Scheme((others[0], blocks, *others[1:]))
    with pytest.raises(ExportError, match=f"block.* does not run on {arch} .warpgroup products"):
        write_export(Export(workload, scheme, H100, ("sm_90a", arch), {}), tmp_path / "x")
    assert not list(tmp_path.iterdir())


def shared_bytes(workload: Workload, choice: Choice) -> int:
    """Shared memory of the kernel of `choice`."""
    program = template_named(choice.template).program(workload, choice)
    assert isinstance(program, KernelProgram)
    return program.shared_bytes


@pytest.mark.parametrize(
    ("arch", "most_bytes"),
    [
        ("sm_80", 166_912),
        ("sm_86", 101_376),
        ("sm_87", 166_912),
        ("sm_89", 101_376),
        ("sm_90", 232_448),
        ("sm_100a", 232_448),
        ("sm_120", 101_376),
    ],
)
def test_a_kernel_that_needs_more_shared_memory_than_a_chip_has_is_refused(arch: str, most_bytes: int) -> None:
    blocks = {"tile_m": 128, "tile_n": 256, "tile_k": 64, "warps_m": 2, "warps_n": 4, "warps_k": 1, "split_k": 1}
    for stages, needed in ((2, 98_304), (3, 147_456), (4, 196_608), (5, 245_760)):
        choice = Choice(Run(0, 0), "gemm", tuple((blocks | {"stages": stages}).items()))
        assert shared_bytes(LARGE, choice) == needed
        if needed <= most_bytes:
            check_runs_on(LARGE, [choice], arch, H100)
        else:
            with pytest.raises(ExportError, match=f"gemm.* does not run on {arch} .{needed} bytes of shared memory"):
                check_runs_on(LARGE, [choice], arch, H100)


def test_the_safe_scheme_has_to_run_there_too(tmp_path: Path) -> None:
    library = template_choices("cublaslt", SMALL, Run(0, 0), H100)[0]
    scheme = Scheme((library, *LegalSpace(SMALL).unfused.choices[1:]))
    with pytest.raises(ExportError, match=r"gemm.* does not run on sm_75 \(asynchronous copies"):
        write_export(Export(SMALL, scheme, H100, ("sm_75",), {}), tmp_path / "x")
    assert not list(tmp_path.iterdir())
