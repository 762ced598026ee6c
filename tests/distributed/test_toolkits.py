"""``grace bench train --toolkit``: one sweep over all toolkits, two workers each, as a user runs it."""

import importlib.util

import pytest

from grace_bench.extras import TOOLKITS
from grace_bench.runs.results import decode
from tests.distributed.test_train import run


# In each toolkit alone the model is torch's and trains as torch's does; its door gives the simulator's bits.
@pytest.mark.night("another model", "another training", "raw gradient", "last tensor skipped")
def test_all_toolkits_train_the_same_task_on_the_same_data_to_the_same_quality(tmp_path):
    toolkits = [toolkit for toolkit in TOOLKITS if importlib.util.find_spec(toolkit) is not None]
    if len(toolkits) == 1:
        pytest.skip("pip install 'grace-dl[tensorflow,jax]'")
    command = ["bench", "train", "--toolkit", ",".join(toolkits), "--tasks", "ncf_small", "--methods", "topk:ratio=0.1"]
    short = ["--baselines", "", "--workers", "2", "--steps", "6", "--evaluations", "2", "--out", str(tmp_path)]
    ran = run(*command, *short, cwd=tmp_path)
    assert ran.exit_code == 0, ran.output
    documents = [decode(file.read_bytes()) for file in (tmp_path / "runs").glob("*.json")]
    runs = {document.toolkit: document for document in documents}
    assert set(runs) == set(toolkits)
    torchs = runs["torch"]
    for document in runs.values():
        assert document.replicas_agree
        assert document.data == torchs.data
        assert document.model == torchs.model
        assert document.traffic.sent_bytes_per_step == pytest.approx(torchs.traffic.sent_bytes_per_step, rel=0.05)
        for here, there in zip(document.curve, torchs.curve, strict=True):
            assert here.metrics["hr10"] == pytest.approx(there.metrics["hr10"], abs=0.01)
            assert (here.train_loss is None) == (there.train_loss is None)  # none before the first step
            assert there.train_loss is None or here.train_loss == pytest.approx(there.train_loss, rel=1e-3)
