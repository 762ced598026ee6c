import csv
import io

from grace_bench.runs.config import RunConfig
from grace_bench.runs.record import failure_of
from grace_bench.runs.table import columns, curves_csv, line, table_csv, write_tables
from tests.unit.grace_bench.documents import document, point

FAILED = failure_of(RunConfig("digits", "topk", link="1gbit"), "why", ["grace"])


def read(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_a_line_of_the_table():
    cells = line(document())
    assert cells["status"] == "ok"
    assert cells["link"] == "none"
    assert cells["step_ms"] == 3.0
    assert cells["prediction_error"] == 0.1
    assert cells["nic_sent_bytes_per_step"] is None
    assert line(FAILED)["step_ms"] is None
    assert line(FAILED)["link_bits_per_second"] == 1e9
    assert line(FAILED)["error"] == "why"


def test_the_columns_keep_their_names():
    before = (
        "task kind method family workers seed granularity transport status error paper_row steps batch_per_worker metric "
        "better final best replicas_agree nonfinite created link link_bits_per_second link_latency_seconds data procedural "
        "parameters step_ms step_ms_low step_ms_high compute_ms codec_ms exchange_ms exposed_ms samples_per_second "
        "total_seconds rounds_per_step sent_bytes_per_step received_bytes_per_step relative_to_fp32 "
        "nic_sent_bytes_per_step nic_received_bytes_per_step target target_seconds target_epoch target_step "
        "peak_rss_bytes predicted_step_ms prediction_error"
    )
    assert set(before.split()) <= set(columns())


def test_the_table_has_a_line_for_each_run():
    assert [row["final"] for row in read(table_csv([document(), FAILED, document(final=None)]))] == ["0.9", "", ""]


def test_an_empty_table_has_a_heading():
    assert table_csv([]).startswith("status,task,method,")
    assert curves_csv([]).strip() == ""


def test_curves_are_tidy():
    other = RunConfig("digits", "topk:ratio=0.01,memory=none", workers=2)
    lines = read(curves_csv([document(), document(other), FAILED]))
    assert len(lines) == 4
    assert {row["method"] for row in lines} == {"none", "topk:ratio=0.01,memory=none"}
    assert lines[1]["accuracy"] == "0.9"


def test_tasks_with_other_metrics_share_a_table_of_curves():
    lines = read(curves_csv([document(), document(curve=[point(metrics={"perplexity": 7.0})])]))
    assert [row["perplexity"] for row in lines] == ["", "", "7.0"]


def test_tables_are_files(tmp_path):
    write_tables([document()], tmp_path)
    assert {"runs.csv", "curves.csv"} <= {path.name for path in tmp_path.iterdir()}
