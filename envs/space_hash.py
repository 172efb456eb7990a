"""A hash of what a policy was trained to see and to choose from, stored with it and checked when it is loaded."""

import hashlib
import json

from atoffer_rl.envs.observation import GLOBAL_TABLE, OPTION_COUNT, OPTION_TABLE
from atoffer_rl.errors import PolicyError
from atoffer_rl.kernels.registry import all_templates
from atoffer_rl.kernels.space import load_space


def space_hash() -> str:
    """Hash of the observation's fields and ranges, and of the templates and their parameters' names."""
    content = {
        "options": OPTION_COUNT,
        "global": [field[:3] for field in GLOBAL_TABLE],
        "option": [field[:3] for field in OPTION_TABLE],
        "templates": {template.name: _parameter_names(template.name) for template in all_templates()},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _parameter_names(template: str) -> list[str]:
    return sorted({name for grid in load_space(template).grids for name, _ in grid.values})


def check_space_hash(stored: str) -> None:
    """Accept the hash that was stored with a policy.

    Raises:
        PolicyError: If the policy was trained for another space.
    """
    if stored != space_hash():
        raise PolicyError("this policy was made for other observations or templates: train it again")
