"""The tidy table of a sweep: one line for each run."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grace.bench.scratch import write_atomically

_PLAIN = (
    "task", "kind", "method", "family", "workers", "seed", "granularity", "transport", "status", "error", "paper_row",
    "steps", "batch_per_worker", "metric", "better", "final", "best", "replicas_agree", "nonfinite", "created",
)  # fmt: skip
_NESTED = {
    "link": ("link", "name"),
    "link_bits_per_second": ("link", "bits_per_second"),
    "link_latency_seconds": ("link", "latency_seconds"),
    "data": ("data", "name"),
    "procedural": ("data", "procedural"),
    "parameters": ("model", "parameters"),
    "step_ms": ("time", "step_ms", "median"),
    "step_ms_low": ("time", "step_ms", "low"),
    "step_ms_high": ("time", "step_ms", "high"),
    "compute_ms": ("time", "compute_ms"),
    "codec_ms": ("time", "codec_ms"),
    "exchange_ms": ("time", "exchange_ms"),
    "exposed_ms": ("time", "exposed_ms"),
    "samples_per_second": ("time", "samples_per_second"),
    "total_seconds": ("time", "total_seconds"),
    "rounds_per_step": ("traffic", "rounds_per_step"),
    "sent_bytes_per_step": ("traffic", "sent_bytes_per_step"),
    "received_bytes_per_step": ("traffic", "received_bytes_per_step"),
    "relative_to_fp32": ("traffic", "relative_to_fp32"),
    "nic_sent_bytes_per_step": ("nic", "sent_bytes_per_step"),
    "nic_received_bytes_per_step": ("nic", "received_bytes_per_step"),
    "target": ("target", "value"),
    "target_seconds": ("target", "seconds"),
    "target_epoch": ("target", "epoch"),
    "target_step": ("target", "step"),
    "peak_rss_bytes": ("memory", "peak_rss_bytes"),
    "predicted_step_ms": ("prediction", "step_ms"),
    "prediction_error": ("prediction", "relative_error"),
}


def line(document: dict[str, Any]) -> dict[str, Any]:
    """A run as one line; null where it has no such value."""
    out = {key: document[key] for key in _PLAIN}
    for column, path in _NESTED.items():
        value: Any = document
        for key in path:
            value = None if value is None else value[key]
        out[column] = value
    return out


def table_csv(documents: Sequence[dict[str, Any]]) -> str:
    """The table as CSV, with a heading even if there are no runs."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*_PLAIN, *_NESTED], lineterminator="\n")
    writer.writeheader()
    writer.writerows(line(document) for document in documents)
    return text.getvalue()


def write_table(documents: Sequence[dict[str, Any]], out: Path) -> None:
    """``runs.csv`` in ``out``, and ``runs.parquet`` where pyarrow is installed."""
    write_atomically(out / "runs.csv", table_csv(documents))
    if documents and importlib.util.find_spec("pyarrow") is not None:
        import pyarrow
        import pyarrow.parquet

        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([line(document) for document in documents]), sink)
        write_atomically(out / "runs.parquet", sink.getvalue().to_pybytes())
