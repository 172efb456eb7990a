"""`atoffer masks`: which masks there are, and what structure one has."""

from pathlib import Path
from typing import Annotated, Any

import typer

from atoffer_rl.cli.options import JsonOption
from atoffer_rl.cli.output import print_json, print_line, print_table
from atoffer_rl.cli.plan_table import plan_facts, print_plans
from atoffer_rl.errors import MaskError
from atoffer_rl.mask_structure import BLOCK_SIZES, mask_structure
from atoffer_rl.masks import MASK_NAMES, MAX_SEQ_LEN, Mask, parse_mask
from atoffer_rl.plan_summary import MOST_PAIRS, PlanSummary, best_plan, plan_summaries
from atoffer_rl.whole_file import whole_file

_KEEPS = {
    "dense": "every pair",
    "causal": "j <= i",
    "strided": "j <= i and ((i - j) % stride == 0 or j > i - stride)",
    "fixed": "j <= i and (j % block == block - 1 or j // block == i // block)",
    "sliding": "abs(i - j) <= window / 2",
    "longformer": "sliding, or i < global, or j < global",
    "bigbird": "longformer, or block (i, j) is among those drawn for its block row",
    "document": "i and j in the same document",
    "file": "a boolean (S, S) or (B, S, S) array",
}
HEAD_DIM, ELEMENT_BYTES = 64, 2
ROW_BYTES = HEAD_DIM * ELEMENT_BYTES
"""Of the head that plans are compared for."""
COLUMNS_MEAN = (
    "items: thread blocks of a head; a row: columns gathered, and multiplied; KiB: moved; "
    "of dense: share of what dense takes"
)
_EXAMPLES = {"document": "document:lengths=100/156", "file": "file:mask.npy"}


def command(
    mask: Annotated[str | None, typer.Argument(help="A mask, such as sliding:window=64; none lists them all.")] = None,
    seq_len: Annotated[int, typer.Option(metavar="N", help="Tokens in a sequence.", min=1, max=MAX_SEQ_LEN)] = 256,
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the mask, and the plan of least products x KiB, here.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the masks, or show the structure of one.

    With a mask, also what the plans of gathered attention save.

    Example: atoffer masks strided --seq-len 1024 --png strided.png
    """
    if png is not None and (mask is None or png.suffix != ".png"):
        raise MaskError("--png draws a mask as a PNG picture, whose name must end in .png: --png mask.png strided")
    if mask is None:
        _print_list(seq_len, json)
        return
    parsed = parse_mask(mask, seq_len)
    planned = parsed.keep(seq_len).size <= MOST_PAIRS
    plans = plan_summaries(parsed, seq_len, ROW_BYTES) if planned else ()
    if json:
        print_json({**_facts(parsed, seq_len), "plans": plan_facts(plans, seq_len, ROW_BYTES) if plans else []})
    else:
        _print_structure(parsed, seq_len, plans)
    if png is not None:
        _draw(parsed, seq_len, best_plan(plans) if plans else None, png)


def _print_list(seq_len: int, json: bool) -> None:
    rows = [(name, _EXAMPLES.get(name) or str(parse_mask(name, seq_len)), _KEEPS[name]) for name in MASK_NAMES]
    if json:
        print_json([{"name": name, "example": example, "keeps": keeps} for name, example, keeps in rows])
        return
    print_table(["name", f"with the defaults of seq-len {seq_len}", "keeps (query i, key j)"], rows)


def _print_structure(mask: Mask, seq_len: int, plans: tuple[PlanSummary, ...]) -> None:
    facts = _facts(mask, seq_len)
    several = f", {facts['masks']} masks: means over them" if facts["masks"] > 1 else ""
    print_line(f"{facts['mask']} at seq-len {seq_len}{several}")
    print_line(f"keeps {facts['kept']:,} of {facts['pairs']:,} pairs: density {facts['density']:.4f}")
    print_line(f"rows keep {facts['row_min']} to {facts['row_max']} columns; {facts['empty_rows']} rows keep none")
    print_table(
        ["block or row tile", "block density", "distinct columns a tile"],
        [
            (size, f"{density:.4f}", f"{columns:.1f}")
            for size, density, columns in zip(
                BLOCK_SIZES, facts["block_density"].values(), facts["tile_columns"].values(), strict=True
            )
        ],
    )
    print_line()
    if not plans:
        print_line(f"plans of gathered attention are shown for masks of up to {MOST_PAIRS:,} pairs in all")
        return
    print_line(f"plans of gathered attention, for a head of {HEAD_DIM} channels of {8 * ELEMENT_BYTES} bits")
    print_line(f"dense: in the same tiles, every tile gathers, and every row multiplies, {seq_len:,} columns")
    print_line(COLUMNS_MEAN)
    print_plans(plans, seq_len, ROW_BYTES)


def _facts(mask: Mask, seq_len: int) -> dict[str, Any]:
    keep = mask.keep(seq_len)
    structure = mask_structure(mask, seq_len)
    in_row = keep.sum(axis=2)
    return {
        "mask": str(mask),
        "seq_len": seq_len,
        "masks": len(keep),
        "kept": int(keep.sum()),
        "pairs": int(keep.size),
        "density": structure.density,
        "row_min": int(in_row.min()),
        "row_max": int(in_row.max()),
        "empty_rows": int((in_row == 0).sum()),
        "block_density": dict(zip(map(str, BLOCK_SIZES), structure.block_density, strict=True)),
        "tile_columns": {
            str(size): share * seq_len for size, share in zip(BLOCK_SIZES, structure.tile_columns, strict=True)
        },
    }


def _draw(mask: Mask, seq_len: int, plan: PlanSummary | None, path: Path) -> None:
    from atoffer_rl.cli.mask_picture import draw_mask

    picture = draw_mask(mask, seq_len, plan)
    with whole_file(path, MaskError, "picture") as file:
        picture.savefig(file, dpi=150, format="png")
    squares = mask.batches(seq_len)
    typer.echo(f"wrote {path}" + (f": the first of {squares} masks" if squares > 1 else ""), err=True)
