"""Documents of runs, for tests of what reads them."""

from grace.bench.config import RunConfig
from grace.bench.results import identity


def document(config=None, **changes):
    """A run that ended well."""
    config = config or RunConfig("digits", "none", workers=2, steps=10)
    point = {"epoch": 1.0, "step": 10, "seconds": 2.0, "sent_bytes": 5000, "train_loss": 0.1, "accuracy": 0.9}
    return {
        **identity(config), "status": "ok", "error": None, "command": ["grace"],
        "environment": {"python": "3", "torch": "2", "cores": 2, "threads_per_worker": 1},
        "data": {"name": "digits", "procedural": False, "digest": "", "source": "embedded"}, "paper_row": None,
        "optimizer": {"name": "SGD", "peak_lr": 0.1, "lr_scale": 1.0, "momentum": 0.9, "why": None},
        "steps": 10, "steps_per_epoch": 10, "batch_per_worker": 32,
        "model": {"parameters": 10, "tensors": 2, "compressed_parameters": 5, "compressed_tensors": 1},
        "metric": "accuracy", "better": "higher", "final": 0.9, "best": 0.9,
        "target": {"value": 0.95, "seconds": None, "epoch": None, "step": None}, "replicas_agree": True, "nonfinite": 0,
        "traffic": {
            "rounds_per_step": 1.0, "sent_bytes_per_step": 500.0, "received_bytes_per_step": 500.0,
            "fp32_allreduce_bytes_per_step": 1000.0, "relative_to_fp32": 0.5,
        },
        "nic": None,
        "time": {
            "step_ms": {"median": 3.0, "low": 2.0, "high": 4.0}, "codec_ms": 0.5, "exchange_ms": 1.0, "exposed_ms": 1.0,
            "compute_ms": 2.0, "samples_per_second": 100.0, "total_seconds": 0.03,
        },
        "memory": {"peak_rss_bytes": 1000}, "prediction": {"step_ms": 3.3, "relative_error": 0.1, "terms": {}},
        "curve": [{**point, "step": 0, "train_loss": None}, point], **changes,
    }  # fmt: skip
