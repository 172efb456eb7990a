"""AToffer's 16-bit scheme codes: a flag for its hand-written kernel, and one bit an operator.

Maximal runs of equal bits are the segments, so complementing the 15 operator bits changes nothing; the flag acts
only where a segment is exactly [2,6]. Hence 65,536 codes name 16,640 distinct programs.

Reference: AToffer (SC24), the artifact's `translate_value`.
"""

from dataclasses import dataclass
from itertools import groupby
from operator import index
from typing import Self

from atoffer_rl.errors import SchemeError
from atoffer_rl.operators import OPERATOR_COUNT
from atoffer_rl.quote import quote
from atoffer_rl.run import Run

CODE_COUNT = 2 ** (OPERATOR_COUNT + 1)
FLAG = 2**OPERATOR_COUNT
ATTENTION_KERNEL_RUN = Run(2, 6)


@dataclass(frozen=True)
class AtofferProgram:
    """What a code asks for; two codes with equal programs are the same scheme.

    Attributes:
        runs: The segments, covering operators 0 to 14 in order.
        handwritten: Whether [2,6] is to be the hand-written attention kernel.
    """

    runs: tuple[Run, ...]
    handwritten: bool = False

    @classmethod
    def from_code(cls, code: int) -> Self:
        """The program that `code` names.

        Raises:
            SchemeError: If it is not a 16-bit number.
        """
        try:
            code = index(code)
        except TypeError as error:
            raise SchemeError(f"an AToffer code is a whole number from 0 on, not {quote(code)}") from error
        if not 0 <= code < CODE_COUNT:
            raise SchemeError(f"an AToffer code is a number from 0 to {CODE_COUNT - 1}, not {quote(code)}")
        bits = f"{code % FLAG:0{OPERATOR_COUNT}b}"
        segments = [
            [operator for operator, _ in group] for _, group in groupby(enumerate(bits), key=lambda item: item[1])
        ]
        runs = tuple(Run(operators[0], operators[-1]) for operators in segments)
        return cls(runs, code >= FLAG and ATTENTION_KERNEL_RUN in runs)

    @property
    def code(self) -> int:
        """The smallest code that names this program."""
        bits = "".join(str(index % 2) * (run.last - run.first + 1) for index, run in enumerate(self.runs))
        return int(bits, 2) + (FLAG if self.handwritten else 0)
