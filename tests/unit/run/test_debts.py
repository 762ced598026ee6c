"""Debts are added to the next gradients, at once or in instalments, and then they are gone."""

from __future__ import annotations

import torch

from grace.run.debts import Debts


def test_at_once() -> None:
    debts, x = Debts(), torch.tensor([1.0, 2.0])
    assert not debts
    debts.add("w", x)
    debts.add("w", None)
    debts.add("w", torch.tensor([0.5, 0.5]))
    assert x.tolist() == [1.0, 2.0], "what is added stays whose it was"
    assert debts
    assert "w" in debts
    assert "b" not in debts
    gradient = torch.zeros(2)
    debts.join("b", gradient)
    assert gradient.tolist() == [0.0, 0.0]
    debts.join("w", gradient)
    assert gradient.tolist() == [1.5, 2.5]
    debts.pay("b")
    debts.pay("w")
    assert not debts


def test_instalments_pay_all_and_a_copy_does_not_see_it() -> None:
    debts, paid = Debts({"w": torch.tensor([3.0])}, {"w": 3}), []
    before = debts.copy()
    while debts:
        gradient = torch.zeros(1)
        debts.join("w", gradient)
        debts.pay("w")
        paid.append(gradient.item())
    assert paid == [1.0, 1.0, 1.0]
    assert not debts.instalments
    assert before.left["w"].item() == 3.0
    assert before.instalments == {"w": 3}


def test_the_type_of_what_was_owed_first() -> None:
    debts = Debts()
    debts.add("w", torch.ones(1, dtype=torch.bfloat16), torch.float32)
    assert debts.left["w"].dtype == torch.float32
    debts.add("w", torch.ones(1, dtype=torch.bfloat16))
    assert debts.left["w"].dtype == torch.float32
