"""What the compiler makes is machine code, or an error."""

import pytest

from atoffer_rl.errors import CompileError
from atoffer_rl.kernels.compiler import compile_kernel, is_cubin
from atoffer_rl.kernels.neighbour import neighbour_program


def test_machine_code_is_made_for_a_chip() -> None:
    assert is_cubin(compile_kernel(neighbour_program(), "sm_90a"))


@pytest.mark.parametrize("arch", ["compute_90", "sm_99"])
def test_what_is_no_chip_is_named(arch: str) -> None:
    with pytest.raises(CompileError, match=f"the compiler .* '{arch}': name an arch such as sm_90a"):
        compile_kernel(neighbour_program(), arch)
