"""The grids of `bench mha`: which workloads each holds."""

from dataclasses import dataclass
from itertools import product
from typing import Any

from atoffer_rl.workload import Workload

PAPER_MASKS = ("strided", "fixed")
PAPER_LENGTHS = (64, 128, 256, 384, 512, 768, 1024)
DOCUMENTS = "documents"
DOCUMENT_COUNT = 8
NAMED_MASKS = (
    "sliding:window=64",
    "longformer:window=64,global=16",
    "bigbird:window=64,global=16,random=2,block=16",
    DOCUMENTS,
    "causal",
    "dense",
)
BEYOND_ATTENTION = ("ffn_dim", "layers", "activation", "epsilon")
"""The fields of a workload that only the rest of an encoder heeds."""


@dataclass(frozen=True)
class CellGrid:
    """Every combination of batches, lengths, masks and head shapes.

    Attributes:
        batches: Sequences in a batch.
        lengths: Tokens in a sequence.
        masks: Masks; `documents` stands for 8 documents of equal length.
        shapes: (head_dim, heads); empty takes the shape asked for.
        dtype: Storage format; empty takes the one asked for.
    """

    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    masks: tuple[str, ...]
    shapes: tuple[tuple[int, int], ...] = ()
    dtype: str = ""

    @property
    def fixed(self) -> tuple[str, ...]:
        """The fields of a workload that the grid does not leave open."""
        shape = ("heads", "head_dim") if self.shapes else ()
        return ("batch", "seq_len", "mask", *shape, *(("dtype",) if self.dtype else ()))

    def cells(self, workload: Workload) -> list[dict[str, Any]]:
        """The fields of each cell's workload, with all that the grid leaves open taken from `workload`."""
        shapes = self.shapes or ((workload.head_dim, workload.heads),)
        fields = workload.to_json() | ({"dtype": self.dtype} if self.dtype else {})
        return [
            fields
            | {"batch": batch, "seq_len": seq_len, "heads": heads, "head_dim": head_dim}
            | {"mask": _mask(mask, seq_len)}
            for mask, (head_dim, heads), batch, seq_len in product(self.masks, shapes, self.batches, self.lengths)
        ]


GRIDS = {
    "paper": CellGrid((1, 8, 16), PAPER_LENGTHS, PAPER_MASKS),
    "long": CellGrid((1, 16), (2048, 4096), PAPER_MASKS),
    "masks": CellGrid((1, 16), (128, 512, 1024, 4096), NAMED_MASKS),
    "fp32": CellGrid((8, 16), (64, 256, 512, 1024), PAPER_MASKS, dtype="float32"),
    "heads": CellGrid((8,), PAPER_LENGTHS, PAPER_MASKS, shapes=((128, 16), (32, 12))),
    "small": CellGrid((1, 16), (128, 256), PAPER_MASKS),
}


def grid_workloads(name: str, workload: Workload) -> list[Workload]:
    """The cells of grid `name`.

    Raises:
        WorkloadError: If a cell is out of reach with the rest of `workload`.
    """
    return [Workload(**fields) for fields in GRIDS[name].cells(workload)]


def _mask(name: str, seq_len: int) -> str:
    if name != DOCUMENTS:
        return name
    return "document:lengths=" + "/".join([str(seq_len // DOCUMENT_COUNT)] * DOCUMENT_COUNT)
