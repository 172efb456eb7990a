"""`atoffer masks`: which masks there are, and what structure one has."""

from pathlib import Path
from typing import Annotated, Any

import typer

from atoffer_rl.cli.options import JsonOption
from atoffer_rl.cli.output import print_json, print_line, print_table
from atoffer_rl.errors import MaskError
from atoffer_rl.mask_structure import BLOCK_SIZES, mask_structure
from atoffer_rl.masks import MASK_NAMES, MAX_SEQ_LEN, Mask, parse_mask

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
_EXAMPLES = {"document": "document:lengths=100/156", "file": "file:mask.npy"}


def command(
    mask: Annotated[str | None, typer.Argument(help="A mask, such as sliding:window=64; none lists them all.")] = None,
    seq_len: Annotated[int, typer.Option(help="Tokens in a sequence.", min=1, max=MAX_SEQ_LEN)] = 256,
    png: Annotated[Path | None, typer.Option(help="Write a picture of the mask here.")] = None,
    json: JsonOption = False,
) -> None:
    """List the masks, or show the structure of one.

    Example: atoffer masks strided --seq-len 1024 --png strided.png
    """
    if mask is None:
        _print_list(seq_len, json)
        return
    parsed = parse_mask(mask, seq_len)
    _print_structure(parsed, seq_len, json)
    if png is not None:
        _draw(parsed, seq_len, png)


def _print_list(seq_len: int, json: bool) -> None:
    rows = [(name, _EXAMPLES.get(name) or str(parse_mask(name, seq_len)), _KEEPS[name]) for name in MASK_NAMES]
    if json:
        print_json([{"name": name, "example": example, "keeps": keeps} for name, example, keeps in rows])
        return
    print_table(["name", f"with the defaults of seq-len {seq_len}", "keeps (query i, key j)"], rows)


def _print_structure(mask: Mask, seq_len: int, json: bool) -> None:
    facts = _facts(mask, seq_len)
    if json:
        print_json(facts)
        return
    print_line(f"{facts['mask']} at seq-len {seq_len}")
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


def _draw(mask: Mask, seq_len: int, path: Path) -> None:
    if path.suffix != ".png":
        raise MaskError(f"--png writes a PNG picture: {path} must end in .png")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(mask.keep(seq_len)[0], cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    axes.set(title=f"{mask}, sequence length {seq_len}", xlabel="key j", ylabel="query i")
    figure.savefig(path, dpi=150)
    typer.echo(f"wrote {path}", err=True)
