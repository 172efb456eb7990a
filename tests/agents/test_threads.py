import pytest
import torch

from atoffer_rl.agents.threads import single_thread


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_what_follows_has_its_threads_again():
    with single_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_so_it_has_after_an_error():
    with pytest.raises(KeyboardInterrupt), single_thread():
        raise KeyboardInterrupt
    assert torch.get_num_threads() == 2
