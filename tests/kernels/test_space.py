"""Space files: products of grids, in order, for the runs and workloads that they are meant for."""

import pytest

from atoffer_rl.kernels.registry import all_templates
from atoffer_rl.kernels.space import MEASURES, Grid, Space, load_space
from atoffer_rl.run import Run
from atoffer_rl.workload import Workload

SMALL, LARGE = Workload(batch=1, heads=12, seq_len=128), Workload(batch=16, heads=12, seq_len=1024)
RUN = Run(2, 6)


def test_candidates_are_products_in_file_order_without_repeats():
    grids = (Grid(frozenset(), (("a", (1, 2)), ("b", (3,)))), Grid(frozenset(), (("a", (2, 5)), ("b", (3,)))))
    assert [dict(values)["a"] for values in Space(1, grids).candidates(SMALL, RUN)] == [1, 2, 5]


def test_a_grid_is_meant_for_runs():
    space = Space(1, (Grid(frozenset({RUN}), (("a", (1,)),)),))
    assert space.candidates(SMALL, RUN)
    assert not space.candidates(SMALL, Run(1, 6))


def test_a_grid_is_meant_for_workloads():
    space = Space(1, (Grid(frozenset(), (("a", (1,)),), (("head_rows", 0, 2000), ("element_bytes", 2, 2))),))
    assert space.candidates(SMALL, RUN)
    assert not space.candidates(LARGE, RUN)
    assert not space.candidates(Workload(batch=1, heads=12, seq_len=128, dtype="float32"), RUN)


@pytest.mark.parametrize("template", all_templates(), ids=lambda template: template.name)
def test_every_space_file_is_well_formed(template):
    space = load_space(template.name)
    assert space.version >= 1
    for grid in space.grids:
        assert grid.runs <= template.runs
        assert all(name in MEASURES and smallest <= largest for name, smallest, largest in grid.when)
