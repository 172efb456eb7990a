"""Choices of block attention that tests share."""

from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice

RUNS = [Run(1, 5), Run(1, 6), Run(2, 5), Run(2, 6)]
NAMES = ("tile_rows", "columns", "stages", "loader", "shared_queries", "residents", "lazy", "splits")
DEFAULT = dict(zip(NAMES, (128, 64, 4, 0, 1, 2, 0, 1), strict=True))
THREE_GROUPS = dict(zip(NAMES, (192, 128, 3, 1, 1, 1, 0, 1), strict=True))
LOADER = dict(zip(NAMES, (128, 128, 3, 1, 0, 1, 0, 1), strict=True))
SMALL_LOADER = dict(zip(NAMES, (64, 128, 3, 1, 0, 2, 0, 1), strict=True))
SHORT = dict(zip(NAMES, (64, 64, 3, 0, 0, 2, 0, 1), strict=True))
COPIED_QUERIES = dict(zip(NAMES, (64, 64, 3, 0, 1, 3, 0, 1), strict=True))
TWO_SPLITS = dict(zip(NAMES, (64, 128, 3, 0, 0, 1, 1, 2), strict=True))
FOUR_SPLITS = dict(zip(NAMES, (64, 64, 3, 0, 0, 2, 0, 4), strict=True))
BLOCKINGS = (DEFAULT, THREE_GROUPS, LOADER, SMALL_LOADER, SHORT, COPIED_QUERIES, TWO_SPLITS, FOUR_SPLITS)


def choice_of(run=RUNS[2], **values):
    return Choice(run, "block", tuple((DEFAULT | values).items()))
