"""What AToffer's codes can name at all."""

from collections.abc import Iterator

from atoffer_rl.atoffer_code import FLAG, AtofferProgram


def all_programs() -> Iterator[AtofferProgram]:
    """Every distinct program once, by its smallest code."""
    for flag in (0, FLAG):
        for bits in range(FLAG // 2):
            program = AtofferProgram.from_code(flag + bits)
            if program.handwritten or not flag:
                yield program
