"""Every searcher by name."""

from importlib import import_module
from typing import TYPE_CHECKING

from atoffer_rl.errors import AtofferError

if TYPE_CHECKING:
    from atoffer_rl.agents.session import Searcher

_MODULES = {
    "oracle": "atoffer_rl.agents.oracle",
    "ppo": "atoffer_rl.agents.ppo",
    "random": "atoffer_rl.agents.random_search",
}
SEARCHERS = tuple(_MODULES)
LIVE_SEARCHERS = tuple(name for name in SEARCHERS if name != "oracle")
"""Those that need no completely recorded workload."""


def searcher_named(name: str) -> "Searcher":
    """The searcher called `name`; its module is imported only now.

    Raises:
        AtofferError: If there is none.
    """
    if name not in _MODULES:
        raise AtofferError(f"unknown searcher {name!r}: use one of {', '.join(SEARCHERS)}")
    searcher: Searcher = import_module(_MODULES[name]).search
    return searcher
