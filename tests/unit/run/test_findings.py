"""Non-finite means are counted, and debts are paid only where the mean is finite."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from grace.contract.method import Exchanged
from grace.errors import NonFiniteError
from grace.run.debts import Debts
from grace.run.findings import Findings


def results(finite: bool) -> dict[str, Exchanged[Any]]:
    mean = torch.tensor([1.0, 2.0 if finite else torch.inf])
    return {"good": Exchanged(torch.ones(2), None, ()), "other": Exchanged(mean, None, (), finite)}


def owing() -> Debts:
    debts = Debts()
    for name in ("good", "other"):
        debts.add(name, torch.ones(2))
        debts.join(name, torch.zeros(2))
    return debts


@pytest.mark.parametrize("nonfinite", ["propagate", "skip"])
def test_a_debt_is_paid_where_the_mean_is_finite(nonfinite: Any) -> None:
    findings, debts, outs = Findings(nonfinite), owing(), results(False)
    findings.act(3, outs, debts)
    assert findings.seen == 1
    assert "good" not in debts
    assert "other" in debts
    assert outs["other"].mean[1] == (torch.inf if nonfinite == "propagate" else 0.0)
    findings.act(4, results(True), debts)
    assert findings.seen == 1
    assert not debts


def test_an_error_names_the_step_and_the_tensor() -> None:
    findings = Findings("error")
    with pytest.raises(NonFiniteError, match="step 3: an inf or NaN in the gradients of 'other'"):
        findings.act(3, results(False), Debts())
    assert findings.seen == 1


def test_what_is_forgotten_is_not_acted_on() -> None:
    findings, debts = Findings("error"), owing()
    findings.pending.flags.append((3, "other", torch.tensor(False)))
    findings.forget()
    findings.wait(debts)
    assert findings.seen == 0
    findings.pending.owing |= {"good", "other"}
    findings.pending.flags += [(3, "good", torch.tensor(True)), (3, "other", torch.tensor(False))]
    with pytest.raises(NonFiniteError, match="'other'"):
        findings.wait(debts)
    assert "good" not in debts


def test_an_error_of_one_step_hides_none_of_the_next() -> None:
    findings = Findings("error")
    for step in (3, 4):
        findings.pending.flags.append((step, "other", torch.tensor(False)))
        findings.pending.send()
    for step in (3, 4):
        with pytest.raises(NonFiniteError, match=f"step {step}: an inf or NaN in the gradients of 'other'"):
            findings.wait(Debts())
    findings.wait(Debts())
    assert findings.seen == 2
