"""Whatever is exported can be seen: on the dashboard, by an alert, or there is a reason why not."""

from __future__ import annotations

import re
from pathlib import Path

from shardherd.telemetry import metrics
from shardherd.telemetry.metrics import Metric

CHART = Path(__file__).resolve().parents[3] / "charts" / "shardherd"
SERIES = ("", "_total", "_bucket", "_sum", "_count")

NOT_SHOWN = {
    metrics.SHARD_CHECKPOINT: "its sum over the group is shown; by shard it is for queries of one's own",
    metrics.SHARD_OWNER: "a label to join by, always 1; who holds how many is shown",
    metrics.GROUP_SERIES_OMITTED: "it explains why panels by shard are empty, and only changes with the number of shards",
    metrics.AGENT_SHARDS: "as many as the operator says that the consumer holds, which is shown, but for the time of a move",
    metrics.WORKER_SECONDS_BEHIND: "of Kinesis alone, where the age of the group's lag is shown",
    metrics.SOURCE_POSITION: "a line for each shard that is ahead of its checkpoint by at most one micro-batch",
}
"""Metrics that neither the dashboard nor an alert has, and why."""


def shown() -> set[str]:
    """Every name in a query of the dashboard, or in the expression of an alert."""
    queries = [line for line in (CHART / "files" / "dashboard.json").read_text().splitlines() if '"expr": ' in line]
    alerts = [line for line in (CHART / "templates" / "prometheusrule.yaml").read_text().splitlines() if '"expr" ' in line]
    assert len(queries) > 30
    assert len(alerts) > 10
    return set(re.findall(r"shardherd_\w+", "\n".join((*queries, *alerts))))


def test_every_metric_is_on_the_dashboard_in_an_alert_or_has_a_reason_not_to_be() -> None:
    there, names = [each for each in vars(metrics).values() if isinstance(each, Metric)], shown()
    unseen = {metric for metric in there if not any(metric.name + suffix in names for suffix in SERIES)}
    assert unseen == NOT_SHOWN.keys()
