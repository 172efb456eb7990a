"""The plans of gathered attention beside each other: a table for people, plain values for programs."""

from typing import Any

from atoffer_rl.cli.output import print_line, print_table
from atoffer_rl.plan_summary import PlanSummary, best_plan, dense_summary
from atoffer_rl.row_order import Order

KIB = 1024
LEAST = "least products x KiB"


def order_name(order: Order) -> str:
    """The order in words."""
    return order.name.lower().replace("_", " ")


def plan_facts(plans: tuple[PlanSummary, ...], seq_len: int, row_bytes: int) -> list[dict[str, Any]]:
    """Every plan with its costs, those of a dense mask under the same tiles, and whether it is the best."""
    best = best_plan(plans)
    return [
        {
            "order": plan.order.name.lower(),
            "tile_rows": plan.tile_rows,
            "items": plan.items,
            **_costs(plan, seq_len),
            "dense": _costs(dense_summary(seq_len, plan.tile_rows, row_bytes), seq_len),
            "best": plan is best,
        }
        for plan in plans
    ]


def _costs(plan: PlanSummary, seq_len: int) -> dict[str, float]:
    return {
        "gathered_per_row": plan.gathered / seq_len,
        "products_per_row": plan.products / seq_len,
        "bytes_per_head": plan.size_bytes,
    }


def print_plans(plans: tuple[PlanSummary, ...], seq_len: int, row_bytes: int) -> None:
    """Write the plans as a table, and what the one of least products times bytes saves."""
    best = best_plan(plans)
    names = ["rows tiled", "tile rows", "items"]
    for what in ("gathered a row", "products a row", "KiB a head"):
        names += [what, "of dense"]
    print_table([*names, ""], [(*_row(plan, seq_len, row_bytes), LEAST * (plan is best)) for plan in plans])
    dense = dense_summary(seq_len, best.tile_rows, row_bytes)
    print_line(
        f"{LEAST}: {order_name(best.order)}, {best.tile_rows} rows: "
        f"{_share(best.products, dense.products)} of dense's products, "
        f"{_share(best.size_bytes, dense.size_bytes)} of its bytes; which is fastest, only a measurement says"
    )


def _row(plan: PlanSummary, seq_len: int, row_bytes: int) -> tuple[object, ...]:
    dense = dense_summary(seq_len, plan.tile_rows, row_bytes)
    return (
        order_name(plan.order),
        plan.tile_rows,
        plan.items,
        f"{plan.gathered / seq_len:.2f}",
        _share(plan.gathered, dense.gathered),
        f"{plan.products / seq_len:.1f}",
        _share(plan.products, dense.products),
        f"{plan.size_bytes / KIB:,.0f}",
        _share(plan.size_bytes, dense.size_bytes),
    )


def _share(value: float, whole: float) -> str:
    return f"{value / whole:.1%}"
