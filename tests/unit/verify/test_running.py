import torch

from grace.verify.running import clone_state


def test_states_are_copied_whole():
    state = (torch.ones(2), (None, 3.0, torch.zeros(1)))
    twin = clone_state(state)
    assert twin[1][:2] == (None, 3.0)
    twin[0].zero_()
    assert torch.equal(state[0], torch.ones(2))
