"""What the compiler makes is machine code, or an error."""

from dataclasses import replace

import pytest

from atoffer_rl.errors import CompileError
from atoffer_rl.kernels.compiler import code_hash, code_of, compile_kernel, is_cubin
from atoffer_rl.kernels.neighbour import neighbour_program
from atoffer_rl.kernels.program import KernelProgram


def test_machine_code_is_made_for_a_chip() -> None:
    assert is_cubin(compile_kernel(neighbour_program(), "sm_90a"))


@pytest.mark.parametrize("arch", ["compute_90", "sm_99"])
def test_what_is_no_chip_is_named(arch: str) -> None:
    with pytest.raises(CompileError, match=f"the compiler .* '{arch}': name an arch such as sm_90a"):
        compile_kernel(neighbour_program(), arch)


def test_comments_and_layout_do_not_count() -> None:
    code = 'int a; // one\n\n  /* two\n lines */ const char* b = "// no \\" comment";\n'
    assert code_of(code) == 'int a;\nconst char* b = "// no \\" comment";'
    assert code_of('int a;\nconst char* b = "// no \\" comment"; // one') == code_of(code)
    assert code_of("int a;\nint b;") != code_of("int a; int b;")


def test_headers_count_by_what_they_are_without_comments() -> None:
    program = KernelProgram("k", 'extern "C" __global__ void k() {}', ("common.cuh",), (1, 1, 1), (32, 1, 1), 0, ())
    assert code_hash(program) == code_hash(replace(program, source=f"// what it is\n{program.source}"))
    assert code_hash(program) != code_hash(replace(program, headers=("chain.cuh", "common.cuh")))
    assert code_hash(program) != code_hash(replace(program, source=program.source.replace("{}", "{ return; }")))
