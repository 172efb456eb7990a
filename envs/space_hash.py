"""A hash of what a policy sees and of how many options it chooses from, stored with it and checked when it is loaded.

Templates and parameters are not part of it: an observation describes them by what they do, and by codes that names
never seen before have too.
"""

import hashlib
import json

from atoffer_rl.envs.observation import GLOBAL_TABLE, OPTION_COUNT, OPTION_TABLE
from atoffer_rl.errors import PolicyError


def space_hash() -> str:
    """Hash of the observation's fields and ranges, and of the number of options."""
    content = {
        "options": OPTION_COUNT,
        "global": [field[:3] for field in GLOBAL_TABLE],
        "option": [field[:3] for field in OPTION_TABLE],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def check_space_hash(stored: str) -> None:
    """Accept the hash that was stored with a policy.

    Raises:
        PolicyError: If the policy was trained on other observations.
    """
    if stored != space_hash():
        raise PolicyError("this policy was made for other observations: train it again")
