import pytest

from atoffer_rl.envs import space_hash as module
from atoffer_rl.envs.observation import GLOBAL_TABLE
from atoffer_rl.envs.space_hash import check_space_hash, space_hash
from atoffer_rl.errors import PolicyError
from atoffer_rl.kernels import registry


def test_it_is_stable_and_accepted():
    assert space_hash() == space_hash()
    check_space_hash(space_hash())


def test_other_fields_make_another_space(monkeypatch):
    before = space_hash()
    monkeypatch.setattr(module, "GLOBAL_TABLE", GLOBAL_TABLE[:-1])
    with pytest.raises(PolicyError, match="train it again"):
        check_space_hash(before)


def test_templates_are_no_part_of_it(monkeypatch):
    before = space_hash()
    monkeypatch.setattr(registry, "all_templates", lambda: ())
    assert space_hash() == before
