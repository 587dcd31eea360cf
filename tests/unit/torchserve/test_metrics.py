from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from serving.torchserve import metrics
from serving.torchserve.metrics import Labels

TEXT = """\
# HELP Requests2XX Torchserve prometheus counter metric with unit: Count
# TYPE Requests2XX counter
Requests2XX{Level="Host",Hostname="vm",} 37.0
# HELP WorkerLoadTime Torchserve prometheus gauge metric with unit: Milliseconds
# TYPE WorkerLoadTime gauge
WorkerLoadTime{WorkerName="W-9000-noop_3",Level="Host",Hostname="vm",} 17875.0
# HELP ts_inference_latency_microseconds Torchserve prometheus counter metric with unit: Microseconds
# TYPE ts_inference_latency_microseconds counter
ts_inference_latency_microseconds{model_name="noop",model_version="default",hostname="vm",} 11069.263
# HELP ts_inference_requests_total Torchserve prometheus counter metric with unit: Count
# TYPE ts_inference_requests_total counter
ts_inference_requests_total{model_name="noop",model_version="default",hostname="vm",} 1.0
# HELP infer_seconds a handler's own
# TYPE infer_seconds histogram
infer_seconds_bucket{ModelName="noop",Level="Model",le="0.1",} 3.0
infer_seconds_bucket{ModelName="noop",Level="Model",le="+Inf",} 4.0
infer_seconds_count{ModelName="noop",Level="Model",} 4.0
infer_seconds_sum{ModelName="noop",Level="Model",} 0.7
"""

NOOP_3 = Labels(model="noop", version=3, pool="cpu")


def exposed(text: str = TEXT, labels: Labels = NOOP_3) -> str:
    return metrics.expose(metrics.relabel(text, labels))


def test_every_line_gets_its_true_labels_and_keeps_its_name() -> None:
    lines = exposed().splitlines()
    assert 'ts_inference_latency_microseconds{model="noop",version="3",pool="cpu"} 11069.263' in lines
    assert 'ts_inference_requests_total{model="noop",version="3",pool="cpu"} 1.0' in lines
    assert 'WorkerLoadTime{worker="W-9000-noop_3",model="noop",version="3",pool="cpu"} 17875.0' in lines
    assert 'infer_seconds_bucket{le="0.1",model="noop",version="3",pool="cpu"} 3.0' in lines
    assert "# TYPE infer_seconds histogram" in lines


def test_counters_that_count_the_agent_s_own_questions_are_left_out() -> None:
    assert "Requests2XX" not in exposed()


def test_processes_share_one_declaration_for_each_metric() -> None:
    other = Labels(model="bert", version=1, pool="cpu")
    text = metrics.expose(metrics.merge([metrics.relabel(TEXT, NOOP_3), metrics.relabel(TEXT, other)]))
    assert text.count("# TYPE WorkerLoadTime gauge") == 1
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {sample.labels["model"] for sample in families["WorkerLoadTime"].samples} == {"noop", "bert"}


def test_values_are_escaped() -> None:
    text = '# TYPE x gauge\nx{reason="a\\"b\\\\c\\nd",} 1.0\n'
    (family,) = text_string_to_metric_families(exposed(text))
    assert family.samples[0].labels["reason"] == 'a"b\\c\nd'


def test_lines_that_differ_only_in_a_dropped_label_are_not_repeated() -> None:
    text = '# TYPE x gauge\nx{Hostname="a"} 1.0\nx{Hostname="b"} 2.0\n'
    assert exposed(text).count("\nx{") == 1


def test_a_handler_that_invents_labels_is_cut_off() -> None:
    text = "# TYPE x gauge\n" + "".join(f'x{{user="{i}"}} 1.0\n' for i in range(metrics.SAMPLE_LIMIT + 50))
    assert exposed(text).count("\nx{") == metrics.SAMPLE_LIMIT


def test_broken_text_loses_only_what_is_broken() -> None:
    assert "ts_inference_requests_total" in exposed(TEXT + "# TYPE y gauge\ny{ 1\n")
