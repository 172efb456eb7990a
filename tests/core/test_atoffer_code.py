"""AToffer's codes against a plain reading of the artifact's rule."""

from collections import defaultdict

import pytest

from atoffer_rl.atoffer_code import CODE_COUNT, AtofferProgram
from atoffer_rl.errors import SchemeError
from atoffer_rl.run import Run
from tests.atoffer_programs import all_programs


def plain_reading(code):
    """The artifact's rule, bit by bit: the flag, then maximal groups of equal bits."""
    bits = [(code >> (14 - operator)) & 1 for operator in range(15)]
    runs, first = [], 0
    for operator in range(1, 16):
        if operator == 15 or bits[operator] != bits[operator - 1]:
            runs.append(Run(first, operator - 1))
            first = operator
    return tuple(runs), bool(code >> 15) and Run(2, 6) in runs


@pytest.fixture(scope="module")
def codes_by_program():
    found = defaultdict(list)
    for code in range(CODE_COUNT):
        found[AtofferProgram.from_code(code)].append(code)
    return found


def test_every_code_is_read_right():
    for code in range(0, CODE_COUNT, 7):
        program = AtofferProgram.from_code(code)
        assert (program.runs, program.handwritten) == plain_reading(code)


def test_there_are_16640_programs(codes_by_program):
    assert len(codes_by_program) == 16_640
    assert len({program.runs for program in codes_by_program}) == 16_384
    assert sum(program.handwritten for program in codes_by_program) == 256
    assert set(all_programs()) == set(codes_by_program)
    assert len(list(all_programs())) == 16_640


def test_a_program_names_its_smallest_code(codes_by_program):
    for program, codes in codes_by_program.items():
        assert program.code == min(codes)


def test_unfused(codes_by_program):
    unfused = AtofferProgram(tuple(Run(operator, operator) for operator in range(15)))
    assert codes_by_program[unfused] == [10922, 21845, 43690, 54613]


def test_the_artifacts_example():
    program = AtofferProgram.from_code(41115)
    fused = [run for run in program.runs if run.last > run.first]
    assert fused == [Run(2, 6), Run(8, 9), Run(10, 11), Run(13, 14)]
    assert program.handwritten
    assert program != AtofferProgram.from_code(41115 - 2**15)


@pytest.mark.parametrize("code", [-1, 65_536])
def test_other_numbers_are_no_codes(code):
    with pytest.raises(SchemeError, match="a number from 0 to 65535"):
        AtofferProgram.from_code(code)


@pytest.mark.parametrize("code", [1.5, "x", None, [3], -1, CODE_COUNT])
def test_what_is_no_code_is_refused(code):
    with pytest.raises(SchemeError, match="an AToffer code is a"):
        AtofferProgram.from_code(code)


def test_what_is_too_large_to_show_is_no_code():
    for code in (10**5000, [10**5000]):
        with pytest.raises(SchemeError, match=r"an AToffer code is a .*, not <.* too large to show>"):
            AtofferProgram.from_code(code)
