"""Choices of block attention that tests share."""

from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice

RUNS = [Run(1, 5), Run(1, 6), Run(2, 5), Run(2, 6)]
NAMES = (
    "tile_rows",
    "columns",
    "stages",
    "loader",
    "shared_queries",
    "residents",
    "lazy",
    "ranks",
    "cluster",
    "halves",
)
DEFAULT = dict(zip(NAMES, (128, 64, 4, 0, 1, 2, 0, 1, 1, 1), strict=True))
THREE_GROUPS = dict(zip(NAMES, (192, 128, 3, 1, 1, 1, 0, 1, 1, 1), strict=True))
LOADER = dict(zip(NAMES, (128, 128, 3, 1, 0, 1, 0, 1, 1, 1), strict=True))
SMALL_LOADER = dict(zip(NAMES, (64, 128, 3, 1, 0, 2, 0, 1, 1, 1), strict=True))
SHORT = dict(zip(NAMES, (64, 64, 3, 0, 0, 2, 0, 1, 1, 1), strict=True))
COPIED_QUERIES = dict(zip(NAMES, (64, 64, 3, 0, 1, 3, 0, 1, 1, 1), strict=True))
TWO_RANKS = dict(zip(NAMES, (64, 128, 3, 0, 0, 1, 1, 2, 2, 1), strict=True))
FOUR_RANKS = dict(zip(NAMES, (64, 64, 3, 0, 0, 2, 0, 4, 4, 1), strict=True))
ONE_BLOCKS_RANKS = FOUR_RANKS | {"stages": 2, "residents": 1, "cluster": 1}
TWO_BLOCKS_RANKS = FOUR_RANKS | {"cluster": 2, "residents": 1}
TWO_HALVES = dict(zip(NAMES, (128, 64, 4, 0, 1, 2, 0, 1, 1, 2), strict=True))
BLOCKINGS = (
    DEFAULT,
    TWO_HALVES,
    THREE_GROUPS,
    LOADER,
    SMALL_LOADER,
    SHORT,
    COPIED_QUERIES,
    TWO_RANKS,
    FOUR_RANKS,
    ONE_BLOCKS_RANKS,
    TWO_BLOCKS_RANKS,
)


def choice_of(run=RUNS[2], **values):
    return Choice(run, "block", tuple((DEFAULT | values).items()))
