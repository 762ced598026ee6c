"""Documents of runs, for tests of what reads them."""

import msgspec

from grace_bench.runs.config import RunConfig
from grace_bench.runs.record import failure_of
from grace_bench.runs.results import (
    Data,
    Environment,
    ModelSize,
    Optimizer,
    PeakMemory,
    Point,
    Prediction,
    Quartiles,
    Result,
    StepTraffic,
    Target,
    Times,
)


def point(value=0.9, step=10, **changes):
    """An evaluation."""
    point = Point(step, step / 10, step / 5, 500 * step, 0.1 if step else None, {"accuracy": value})
    return msgspec.structs.replace(point, **changes)


def document(config=None, *, why=None, relative=0.5, **changes):
    """A run that ended well."""
    config = config or RunConfig("digits", "none", workers=2, steps=10)
    identity = msgspec.structs.asdict(failure_of(config, "", ["grace"]))
    del identity["error"]
    final = changes.get("final", 0.9)
    fields = {
        "environment": Environment(cores=2, threads_per_worker=1), "data": Data("digits", source="embedded"),
        "optimizer": Optimizer("SGD", 0.1, 1.0, 0.9, why), "steps": 10, "steps_per_epoch": 10, "batch_per_worker": 32,
        "model": ModelSize(10, 2, 5, 1), "metric": "accuracy", "better": "higher", "final": final, "best": final,
        "target": Target(0.95), "replicas_agree": True, "traffic": StepTraffic(1.0, 500.0, 500.0, 1000.0, relative),
        "time": Times(
            step_ms=Quartiles(3.0, 2.0, 4.0), codec_ms=0.5, exchange_ms=1.0, exposed_ms=1.0, compute_ms=2.0,
            samples_per_second=100.0, total_seconds=0.03,
        ),
        "memory": PeakMemory(1000), "prediction": Prediction(3.3, 0.1), "curve": [point(0.1, 0), point(final)],
    }  # fmt: skip
    return Result(**{**identity, **fields, **changes})
