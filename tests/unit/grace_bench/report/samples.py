"""Made-up results in the shape of real ones, for tests of the report. Nothing here was measured."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

from grace_bench.report import read
from grace_bench.runs.results import decode

LINKS = {"none": None, "100mbit": 1e8, "1gbit": 1e9, "10gbit": 1e10, "25gbit": 2.5e10}
METHODS = {  # family, bytes relative to fp32, accuracy at the end, milliseconds of its codec
    "none": ("baseline", 1.0, 0.93, 0.0),
    "bf16": ("cast", 0.5, 0.929, 0.4),
    "topk:ratio=0.01": ("sparsification", 0.012, 0.921, 1.1),
    "randomk:ratio=0.01": ("sparsification", 0.01, 0.88, 0.5),
    "dgc": ("sparsification", 0.014, 0.925, 2.0),
    "qsgd:bits=4": ("quantization", 0.13, 0.926, 0.9),
    "efsignsgd": ("quantization", 0.033, 0.919, 0.8),
    "signsgd": ("quantization", 0.032, 0.85, 0.6),
    "onebit": ("quantization", 0.034, 0.91, 1.0),
    "terngrad": ("quantization", 0.052, 0.90, 1.2),
    "powersgd:rank=4": ("low rank", 0.04, 0.928, 1.6),
    "3lc": ("hybrid", 0.05, 0.915, 1.3),
    "eden": ("rotation", 0.034, 0.924, 2.2),
}
BASELINES = {
    "ddp-fp32": ("baseline", 1.0, 0.93, 0.0),
    "ddp-bf16": ("baseline", 0.5, 0.9295, 0.2),
    "ddp-powersgd": ("baseline", 0.04, 0.922, 2.4),
    "no-communication": ("baseline", 0.0, None, 0.0),
}


def run(method="topk:ratio=0.01", *, task="digits", link="none", workers=4, seed=0, points=25, procedural=False,
        parameters=272_474, target=0.9, error=None, lower=False, transport="gloo", **changes):  # fmt: skip
    """A ``grace.result`` document."""
    family, relative, final, codec = {**METHODS, **BASELINES}.get(method, ("other", 0.1, 0.9, 1.0))
    rng = random.Random(f"{method} {task} {link} {seed} {workers} {transport}")
    bits = LINKS.get(link)
    document = {
        "schema": "grace.result", "version": 3, "created": "2026-01-02T03:04:05+00:00",
        "command": ["grace", "bench", "train", "--task", task], "task": task, "method": method, "recipe": method,
        "kind": "baseline" if method in BASELINES else "method", "family": family, "workers": workers, "seed": seed,
        "granularity": "parameter", "transport": transport,
        "link": {"name": link, "bits_per_second": bits, "latency_seconds": None},
        "environment": {"grace": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "numpy": "2.0.0", "cores": 2,
                        "system": "Linux x86_64", "threads_per_worker": 1, "backend": transport},
        "status": "ok",
    }  # fmt: skip
    if error is not None:
        return {**document, "status": "failed", "error": error}
    metric, better = ("perplexity", "lower") if lower else ("accuracy", "higher")
    fp32 = 8 * (workers - 1) / workers * parameters
    sent = relative * fp32
    compute = 22.0 * rng.uniform(0.97, 1.03)
    waiting = 0.0 if not relative else 0.6 + (8000 * sent / bits if bits else sent / 2e6)
    exposed = waiting + codec
    step = compute + exposed
    steps_per_epoch, epochs = 40, 10
    curve = []
    for k in range(points):
        part = k / (points - 1)
        value = None if final is None else (final + rng.gauss(0, 0.004) - 0.8 * math.exp(-6 * part))
        if lower and value is not None:
            value = 90 + 400 * (1 - value)
        number = round(part * steps_per_epoch * epochs)
        curve.append({
            "epoch": number / steps_per_epoch, "step": number, "seconds": number * step / 1000,
            "sent_bytes": round(number * sent), "train_loss": 2 * math.exp(-3 * part),
            "metrics": {metric: value},
        })  # fmt: skip
    values = [value for point in curve if (value := point["metrics"][metric]) is not None]
    better_than = (lambda value: value <= target) if lower else (lambda value: value >= target)
    hit = next((p for p in curve if (value := p["metrics"][metric]) is not None and better_than(value)), None)
    predicted = step * rng.uniform(0.92, 1.1)
    return {
        **document, "steps": steps_per_epoch * epochs, "steps_per_epoch": steps_per_epoch, "batch_per_worker": 32,
        "optimizer": {"name": "SGD", "peak_lr": 0.1, "lr_scale": 1.0, "momentum": 0.9,
                      "why": "lr x 0.02: votes of +-1" if method == "signsgd" else None},
        "model": {"parameters": parameters, "tensors": 51, "compressed_parameters": 270_000, "compressed_tensors": 20},
        "metric": metric, "better": better, "final": curve[-1]["metrics"][metric],
        "best": (min if lower else max)(values, default=None), "replicas_agree": final is not None, "nonfinite": 0,
        "traffic": {"rounds_per_step": 2.0, "sent_bytes_per_step": sent, "received_bytes_per_step": sent,
                    "fp32_allreduce_bytes_per_step": fp32, "relative_to_fp32": relative},
        "time": {"step_ms": {"median": step, "low": 0.97 * step, "high": 1.06 * step}, "codec_ms": codec,
                 "exchange_ms": 1.2 * waiting, "exposed_ms": exposed, "compute_ms": compute,
                 "samples_per_second": 32 * workers / step * 1000, "total_seconds": 0.4 * step},
        "target": {"value": target, **{key: hit and hit[key] for key in ("seconds", "epoch", "step")}},
        "nic": {"sent_bytes_per_step": 1.04 * sent, "received_bytes_per_step": 1.04 * sent} if bits else None,
        "memory": {"peak_rss_bytes": 350_000_000}, "paper_row": None,
        "data": {"name": "shapes" if procedural else "digits", "procedural": procedural, "digest": "0" * 16,
                 "source": "embedded"},
        "prediction": {"step_ms": predicted, "relative_error": predicted / step - 1} if bits else None,
        "curve": curve, **changes,
    }  # fmt: skip


def run_of(document, file="a.json"):
    """The run of such a document, as the reader of a directory finds it."""
    return read.Run(file, decode(json.dumps(document)))


def codecs(sizes=(4096, 262_144, 25_000_000), threads=(1, 2)):
    """A ``grace.codecs`` document."""
    rng = random.Random(3)
    rows = []
    for size in sizes:
        for thread in threads:
            for method, (_, _, _, cost) in METHODS.items():
                for operation, part in (("compress", 1.0), ("decompress", 0.6)):
                    ratio = (0.3 + cost) * part * rng.uniform(0.9, 1.1)
                    rows.append({
                        "operation": operation, "method": method, "size": size, "threads": thread, "ratio": ratio,
                        "low": 0.95 * ratio, "high": 1.12 * ratio, "goal": 1.5,
                        "microseconds": 1 + ratio * size / 4000 / thread,
                    })  # fmt: skip
    return {"schema": "grace.codecs", "version": 1, "environment": {"cores": 2}, "rows": rows}


def write(directory: Path, documents, codec_document=None) -> Path:
    """A results directory."""
    (directory / "runs").mkdir(parents=True, exist_ok=True)
    for index, document in enumerate(documents):
        (directory / "runs" / f"{index:04}.json").write_text(json.dumps(document))
    if codec_document is not None:
        (directory / "codecs.json").write_text(json.dumps(codec_document))
    return directory


def sweep(*, tasks=("digits", "resnet20", "lstm"), links=("100mbit", "1gbit", "10gbit"), seeds=(0, 1, 2), methods=None):
    """Documents of a sweep with everything in it: baselines, a failure, a divergence, procedural data, both directions."""
    out = []
    for task in tasks:
        settings = {"task": task, "procedural": task != "digits", "lower": task == "lstm"}
        if task == "lstm":
            settings |= {"target": 130.0, "parameters": 19_775_200}
        out += [
            run(method, link=link, seed=seed, **settings)
            for method in [*(methods or METHODS), *BASELINES] for link in links for seed in seeds
        ]  # fmt: skip
    out.append(
        run("atomo", task=tasks[0], link=links[0], error="rank 1: PayloadError: indices out of order at byte 12")
    )
    return out
