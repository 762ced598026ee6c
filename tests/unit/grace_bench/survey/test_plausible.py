"""Runs of others: what is wrong with them."""

import pytest
import torch

from grace.run.simulator import Simulator
from grace_bench.runs.results import DocumentError, encode
from grace_bench.survey.archive import add, check_row, merge
from grace_bench.survey.plausible import check_plausible
from grace_bench.tasks import find_task
from tests.unit.grace_bench.survey.tiny import HERE, change


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"method": "topp"}, "topp"),
        ({"recipe": "Allreduce(BF16())"}, "its recipe is not"),
        ({"sent": [0, 10**12]}, "1000000000000 bytes sent are not plausible"),
        ({"sent": [0, 0]}, "0 bytes sent are not plausible"),
        ({"sent": [0]}, "its evaluations differ in number"),
        ({"at": [3, 0]}, "not in order"),
        ({"at": [0, 4]}, "after its last step"),
        ({"final": None}, "it has no end"),
        ({"source": "synthetic"}, "teach nothing"),
        ({"digest": ""}, "no digest"),
        ({"peak_lr": -1.0}, "learning rate"),
        ({"torch": "newest"}, "its versions are no versions"),
        ({"cpu_seconds": -1.0}, "processor time"),
    ],
)
def test_what_cannot_be_is_refused(fields, match, whole):
    check_row(whole[1][0])
    with pytest.raises(DocumentError, match=match):
        check_row(change(whole[1][0], **fields))


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"digest": "f" * 16}, "it has data f+, where this Grace has 0123456789abcdef"),
        ({"parameters": 3341}, "3341 parameters, where the task has 3340"),
        ({"sent": [0, 10_000]}, "10000 bytes sent in 3 steps, where this Grace sends 40080"),
        ({"sent": [0, 41_500]}, "41500 bytes sent in 3 steps, where this Grace sends 40080"),
    ],
)
def test_what_this_grace_would_not_make_is_not_added(fields, match, whole, tmp_path):
    row = next(row for row in whole[1] if row.method == "none" and row.seed == 0)
    check_plausible(row, "a run")
    check_plausible(change(row, source="official", **fields), "a run")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "one.json").write_text(encode(change(row, **fields)))
    with pytest.raises(DocumentError, match=match):
        add(tmp_path, tmp_path / "a.parquet")
    assert not (tmp_path / "a.parquet").exists()


def test_a_method_that_alternates_is_held_against_what_it_sends_on_average(whole):
    """ACP-SGD sends one factor in one step and the other in the next: neither step's bytes are those of them all."""
    row = next(row for row in whole[1] if row.method == "none" and row.seed == 0)
    exchange, task = Simulator("acpsgd", row.workers, seed=0), find_task(f"{HERE}:Tall")
    gradients = {key: [torch.ones(p.shape)] * row.workers for key, p in task.model().named_parameters()}
    sent = [0]
    for _ in range(100):
        exchange.step(gradients)
        sent.append(exchange.traffic[0].sent)
    assert sent[3] - sent[2] != sent[2] - sent[1]
    alternating = change(
        row, task=f"{HERE}:Tall", parameters=1620, method="acpsgd", at=[0, 100], values=[1.0, 1.0], sent=[0, sent[100]]
    )
    check_plausible(alternating, "a run")
    with pytest.raises(DocumentError, match="where this Grace sends"):
        check_plausible(change(alternating, sent=[0, round(1.05 * sent[100])]), "a run")


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"workers": 3}, "3 workers and batches of 4, where the others of its protocol have 2 and 4"),
        ({"batch": 5}, "2 workers and batches of 5"),
        ({"peak_lr": 0.2}, "the learning rate 0.2, where others of its method and protocol have 0.1"),
    ],
)
def test_runs_of_one_protocol_differ_in_nothing_else(fields, match, whole):
    with pytest.raises(DocumentError, match=match + ".*a protocol of another name"):
        merge(whole[1], [change(whole[1][0], seed=7, **fields)])
    assert len(merge(whole[1], [change(whole[1][0], seed=7, protocol="other", **fields)])) == 7
