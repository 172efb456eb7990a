"""Where commands take a policy from."""

from pathlib import Path
from typing import TYPE_CHECKING

from atoffer_rl.errors import PolicyError

if TYPE_CHECKING:
    from atoffer_rl.agents.checkpoint import Checkpoint

RANDOM = "random"


def read_policy(policy: str) -> "Checkpoint":
    """The policy `shipped` with the package, or the one in a file.

    Raises:
        PolicyError: If it names none, is missing, damaged or was trained for another space.
    """
    from atoffer_rl.agents.checkpoint import SHIPPED_POLICY, load_checkpoint

    if policy in ("", RANDOM):
        raise PolicyError(f"policy {policy!r} has no weights: give shipped, or the path of a checkpoint.zip")
    if policy != "shipped":
        return load_checkpoint(Path(policy))
    try:
        return load_checkpoint(SHIPPED_POLICY)
    except PolicyError as error:
        raise PolicyError(f"the shipped policy cannot be used ({error}); --policy random starts without it") from error
