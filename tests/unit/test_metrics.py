"""What is declared is exported."""

import inspect

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from runfold.telemetry.declaring import Exported, Metric
from runfold.telemetry.metrics import ApiMetrics, ProjectorMetrics, WorkerMetrics

PROCESSES = [WorkerMetrics, ProjectorMetrics, ApiMetrics]


@pytest.mark.parametrize("process", PROCESSES)
def test_every_declared_metric_is_there_from_the_start(process: type[Exported]) -> None:
    registry = CollectorRegistry()
    process(registry)
    page = generate_latest(registry).decode()
    assert len(process.declared()) > 3
    for metric in process.declared():
        assert f"# HELP {metric.name}" in page, metric.text


@pytest.mark.parametrize("process", PROCESSES)
def test_a_histogram_has_buckets_of_its_own(process: type[Exported]) -> None:
    """Those of the library end at 10 s and begin at 5 ms: too late and too coarse."""
    assert all(metric.buckets for metric in process.declared() if metric.kind is Histogram)


@pytest.mark.parametrize("process", PROCESSES)
def test_on_the_class_a_metric_is_what_was_declared(process: type[Exported]) -> None:
    """As whoever looks through a class expects: documentation, inspection, a double."""
    assert [value for _, value in inspect.getmembers(process) if isinstance(value, Metric)]
    assert {getattr(process, name) for name in vars(process) if isinstance(vars(process)[name], Metric)} == {*process.declared()}


def test_each_worker_counts_for_itself() -> None:
    first, second = CollectorRegistry(), CollectorRegistry()
    metrics, others = WorkerMetrics(first), WorkerMetrics(second)
    metrics.folded.inc(2)
    metrics.takeover.observe(0.002)
    assert first.get_sample_value("runfold_folded_records_total") == 2
    assert second.get_sample_value("runfold_folded_records_total") == 0
    assert first.get_sample_value("runfold_takeover_seconds_bucket", {"le": "0.002"}) == 1
    assert metrics.folded is metrics.folded
    assert metrics.folded is not others.folded
