"""Alerts, dashboard and monitors: checked by promtool, and against the metrics that there are."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from shardherd.telemetry import metrics
from shardherd.telemetry.collector import GroupCollector
from shardherd.telemetry.kafka_names import KafkaNames
from shardherd.telemetry.metrics import Metric
from shardherd.telemetry.operator_metrics import OperatorMetrics
from tests.chart.rendering import EVERYTHING, ROOT, Chart
from tests.unit.core.planning.builders import IDENTITY, consumers, shards, view

Json = dict[str, Any]

AUTHORIZED = {"authorization": {"type": "Bearer", "credentials": {"name": "scrapers", "key": "token"}}}
OF_GROUP = '{namespace="shop", consumergroup="clicks"}'
GROUP = {"namespace": "shop", "consumergroup": "clicks"}


def rules(chart: Chart) -> Json:
    found: Json = chart.one("PrometheusRule", values=EVERYTHING)["spec"]
    return found


def dashboard(chart: Chart) -> Json:
    found: Json = json.loads(chart.one("ConfigMap", "shardherd-dashboard", EVERYTHING)["data"]["shardherd.json"])
    return found


def operator(chart: Chart, values: Json) -> tuple[Json, list[Json]]:
    """The operator's container and the volumes of its pod."""
    spec = chart.one("Deployment", values=values)["spec"]["template"]["spec"]
    return spec["containers"][0], spec["volumes"]


def alerts(chart: Chart) -> dict[str, Json]:
    return {rule["alert"]: rule for group in rules(chart)["groups"] for rule in group["rules"] if "alert" in rule}


def promtool(*arguments: str) -> str:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass
class Case:
    """One alert: series for which it fires at a time, and series for which it does not. Values as promtool writes them."""

    alert: str
    at: str
    firing: dict[str, str]
    silent: dict[str, str]
    labels: dict[str, str]


def case(alert: str, at: str, series: str, firing: str, silent: str, labels: dict[str, str] | None = None) -> Case:
    """A case of one series of the group."""
    name = series if "{" in series else series + OF_GROUP
    return Case(alert, at, {name: firing}, {name: silent}, GROUP if labels is None else labels)


def of_group(metric: str, **labels: str) -> str:
    more = "".join(f', {name}="{value}"' for name, value in labels.items())
    return f"{metric}{OF_GROUP[:-1]}{more}}}"


def leads(pod: str, release: str = "system") -> str:
    """The series by which an operator says whether it leads; Prometheus adds the labels of what it scraped."""
    return f'shardherd_leader{{namespace="{release}", job="shardherd-metrics", pod="{pod}"}}'


def serves(pod: str) -> str:
    """The epoch of the group as this operator shows it, as of each that it serves."""
    return f'shardherd_group_epoch{OF_GROUP[:-1]}, source="kinesis", pod="{pod}"}}'


def unowned(pod: str) -> str:
    """For how long a shard of the group has had no holder, as this operator shows it."""
    return of_group("shardherd_group_max_unowned_seconds", pod=pod)


def desired(pod: str) -> str:
    """How many consumers the group is to have, as this operator shows it."""
    return of_group("shardherd_replicas", kind="desired", pod=pod)


CERTIFICATE, AUTHORITY = "shardherd_certificate_expiry_timestamp_seconds", "shardherd_authority_expiry_timestamp_seconds"

# Samples are a minute apart: `a+bxn` counts from a by b, n times.
CASES = [
    case("ShardherdNoLeader", "5m", leads("a"), "0x10", "1x10", {"namespace": "system"}),
    # Its operators are gone, and those of another release lead.
    Case(
        "ShardherdNoLeader",
        "5m",
        {leads("b", "other"): "1x10"},
        {leads("a"): "1x10", leads("b", "other"): "0x10"},
        {"namespace": "system"},
    ),
    Case(
        "ShardherdTwoLeaders",
        "5m",
        {leads("a"): "1x10", leads("b"): "1x10"},
        {leads("a"): "1x10", leads("b"): "0x10"},
        {"namespace": "system"},
    ),
    Case(
        "ShardherdTwoLeaders",
        "5m",
        # Two releases: of the same namespaces, and each of its own.
        {leads("a"): "1x10", leads("b", "other"): "1x10"} | {serves(pod): "7x10" for pod in "ab"},
        {leads("a"): "1x10", leads("b", "other"): "1x10", serves("a"): "7x10"},
        GROUP,
    ),
    case("ShardherdNotReconciling", "20m", "shardherd_reconcile_errors_total", "0+1x30", "3x30"),
    case("ShardherdShardUnowned", "5m", "shardherd_group_max_unowned_seconds", "0+60x10", "0 30 45 0 0 0"),
    Case(
        "ShardherdShardUnowned",
        "9m",
        # It is to have consumers; it was to have none until the first record came, and one starts.
        {f"shardherd_group_max_unowned_seconds{OF_GROUP}": "0+60x10", of_group("shardherd_replicas", kind="desired"): "0 2x10"},
        {
            f"shardherd_group_max_unowned_seconds{OF_GROUP}": "0+60x10",
            of_group("shardherd_replicas", kind="desired"): "0x6 1x5",
        },
        GROUP,
    ),
    Case(
        "ShardherdShardUnowned",
        "6m",
        # Another operator leads since, and the group is to have no consumer any more.
        {unowned("b"): "_x2 0+60x10", desired("a"): "2x2 stale", desired("b"): "_x2 2x10"},
        {unowned("b"): "_x2 0+60x10", desired("a"): "2x2 stale", desired("b"): "_x2 0x10"},
        GROUP,
    ),
    case("ShardherdTransferStuck", "5m", "shardherd_group_max_transfer_seconds", "0+60x10", "0 60 0 60 0 60"),
    Case(
        "ShardherdLagSeconds",
        "40m",
        # The oldest record waits since the producers stopped; for a minute that is not known.
        {
            f"shardherd_group_lag_seconds{OF_GROUP}": "0+60x30 stale 1920+60x28",
            f"shardherd_group_end_offset{OF_GROUP}": "1800x60",
        },
        {f"shardherd_group_lag_seconds{OF_GROUP}": "600x60", f"shardherd_group_end_offset{OF_GROUP}": "0+60x60"},
        GROUP,
    ),
    Case(
        "ShardherdStalled",
        "20m",
        {f"shardherd_group_lag_records{OF_GROUP}": "5x30", f"shardherd_group_committed_offset{OF_GROUP}": "70x30"},
        {f"shardherd_group_lag_records{OF_GROUP}": "5x30", f"shardherd_group_committed_offset{OF_GROUP}": "70+1x30"},
        GROUP,
    ),
    case(
        "ShardherdShardStalled",
        "15m",
        of_group("shardherd_group_shards_by_verdict", verdict="Stalled"),
        "2x30",
        "0x10 1x5 0x15",
        GROUP,
    ),
    case(
        "ShardherdWorkerFailing",
        "15m",
        of_group("shardherd_worker_failing_shards", consumer="clicks-0"),
        "2x30",
        "0x10 1x5 0x15",
        GROUP,
    ),
    case(
        "ShardherdFencedCheckpoints", "20m", of_group("shardherd_checkpoints_total", result="fenced"), "0+1x30", "4x30", GROUP
    ),
    case("ShardherdRebalanceStorm", "30m", of_group("shardherd_rebalances_total", reason="Joined"), "0+3x40", "0+1x40", GROUP),
    case("ShardherdSourceUnreachable", "10m", "shardherd_group_source_reachable", "0x20", "1 1 0 0 1 1 0 0 1 1 1 1"),
    case(
        "ShardherdCheckpointLost", "1m", of_group("shardherd_group_condition", condition="CheckpointLost"), "1x5", "0x5", GROUP
    ),
    case(
        "ShardherdReplicasLimited",
        "20m",
        of_group("shardherd_group_condition", condition="ScalingLimited"),
        "1x30",
        "0x30",
        GROUP,
    ),
    # Six days are left, or eight, or there is no certificate.
    case("ShardherdCertificateExpiring", "15m", f"{CERTIFICATE}{{}}", "518400x20", "691200x20", {}),
    case("ShardherdAuthorityExpiring", "15m", f"{AUTHORITY}{{}}", "518400x20", "0x20", {}),
    case("ShardherdNotReady", "20m", of_group("shardherd_group_condition", condition="Ready"), "0x30", "0x10 1x20", GROUP),
]


def unit_test(case: Case, series_of: dict[str, str], at: str, *, fires: bool) -> Json:
    """A test as promtool reads it: of all alerts, exactly this one fires at this time, or none."""
    # The expression about the leader would fire for all others.
    series = {leads("led"): "1x60"} if not case.alert.endswith(("NoLeader", "TwoLeaders")) else {}
    series |= series_of
    labels = ", ".join(f'{name}="{value}"' for name, value in {"alertname": case.alert, **case.labels}.items())
    others = "ShardherdNotReady|ShardherdStalled" if case.alert not in ("ShardherdNotReady", "ShardherdStalled") else "-"
    query = f'max by (alertname, namespace, consumergroup) (ALERTS{{alertstate="firing", alertname!~"{others}"}})'
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": query, "eval_time": at, "exp_samples": [{"labels": f"{{{labels}}}", "value": 1}] if fires else []}
        ],
    }


class TestAlerts:
    @pytest.fixture
    def files(self, chart: Chart, tmp_path: Path) -> Path:
        (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules(chart)))
        return tmp_path

    def test_promtool_accepts_the_rules(self, files: Path) -> None:
        assert "17 rules found" in promtool("check", "rules", str(files / "rules.yaml"))

    def test_each_fires_when_it_should_and_only_then(self, chart: Chart, files: Path) -> None:
        assert {case.alert for case in CASES} == set(alerts(chart))
        tests = [unit_test(case, case.firing, case.at, fires=True) for case in CASES]
        tests += [unit_test(case, case.silent, case.at, fires=False) for case in CASES]
        for case in CASES:
            minutes = int(alerts(chart)[case.alert]["for"].removesuffix("m"))
            if minutes > 0:
                tests.append(unit_test(case, case.firing, f"{minutes - 1}m", fires=False))
        test = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
        (files / "tests.yaml").write_text(yaml.safe_dump(test))
        assert "SUCCESS" in promtool("test", "rules", str(files / "tests.yaml"))

    def test_without_a_service_monitor_a_release_that_is_scraped_and_does_not_lead_fires(
        self, chart: Chart, tmp_path: Path
    ) -> None:
        values = {"prometheus": {"rules": {"enabled": True}}}
        (tmp_path / "rules.yaml").write_text(yaml.safe_dump(chart.one("PrometheusRule", values=values)["spec"]))
        query = "max by (alertname, namespace) (ALERTS)"

        def test(series: dict[str, str], *firing: str) -> Json:
            expected = [{"labels": f'{{alertname="ShardherdNoLeader"{labels}}}', "value": 1} for labels in firing]
            return {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [{"expr": query, "eval_time": "5m", "exp_samples": expected}],
            }

        tests = [
            test({leads("a"): "0x10", leads("b"): "1x10"}),
            test({leads("a"): "0x10", leads("b", "other"): "1x10"}, ', namespace="system"'),
            test({}, ""),
        ]
        (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}))
        assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "tests.yaml"))

    def test_the_words_name_the_group_and_the_value(self, files: Path) -> None:
        expected = {
            "exp_labels": {**GROUP, "severity": "critical", "team": "data"},
            "exp_annotations": {
                "summary": "A shard of group shop/clicks has been read by nobody for 5m 0s",
                "description": "Its records wait. The condition Ready of the group has the reason.",
                "runbook_url": "https://example.com/reasons.md#shardherdshardunowned",
            },
        }
        test = {
            "interval": "1m",
            "input_series": [{"series": f"shardherd_group_max_unowned_seconds{OF_GROUP}", "values": "0+60x10"}],
            "alert_rule_test": [{"alertname": "ShardherdShardUnowned", "eval_time": "5m", "exp_alerts": [expected]}],
        }
        (files / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [test]}))
        promtool("test", "rules", str(files / "tests.yaml"))

    def test_each_has_a_section_in_the_runbook_and_a_severity(self, chart: Chart) -> None:
        runbook = (ROOT / "docs" / "reasons.md").read_text()
        assert [name for name in alerts(chart) if f"\n### {name}\n" not in runbook] == []
        assert {rule["labels"]["severity"] for rule in alerts(chart).values()} == {"critical", "warning", "info"}

    def test_the_words_of_a_limited_number_and_its_runbook_hold_for_each_limit(self, chart: Chart) -> None:
        annotations = alerts(chart)["ShardherdReplicasLimited"]["annotations"]
        assert not re.search("minReplicas|maxReplicas", annotations["summary"])
        assert annotations["description"].endswith("the condition ScalingLimited says which.")

    def test_without_a_runbook_none_is_linked(self, chart: Chart) -> None:
        found = chart.one("PrometheusRule", values={"prometheus": {"rules": {"enabled": True}}})
        assert "runbook_url" not in json.dumps(found)


class TestDashboard:
    def queries(self, chart: Chart) -> list[str]:
        return [target["expr"] for panel in dashboard(chart)["panels"] for target in panel["targets"]]

    def test_every_query_is_valid(self, chart: Chart, tmp_path: Path) -> None:
        rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(self.queries(chart))]
        (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
        assert f"{len(rules)} rules found" in promtool("check", "rules", str(tmp_path / "rules.yaml"))

    def test_how_long_records_wait_is_measured_and_not_a_lag_by_a_rate(self, chart: Chart) -> None:
        panels = {panel["title"]: panel for panel in dashboard(chart)["panels"]}
        (target,) = panels["How long records wait"]["targets"]
        assert target["expr"].startswith("max by (namespace, consumergroup) (shardherd_group_lag_seconds{")
        assert [query for query in self.queries(chart) if "lag_records" in query and "/" in query] == []

    def test_a_group_can_be_chosen_also_where_no_records_are_counted(self, chart: Chart) -> None:
        registry = CollectorRegistry()
        kinesis = view(shards(1, lag_records=None), source="kinesis", counts_records=False)
        registry.register(GroupCollector(lambda: {IDENTITY: kinesis}, 10))
        shown = {sample.name for family in registry.collect() for sample in family.samples}
        choices = [variable["query"] for variable in dashboard(chart)["templating"]["list"] if variable["type"] == "query"]
        chosen_by = [re.findall(r"label_values\((\w+)", choice)[0] for choice in choices]
        assert [name for name in chosen_by if name not in shown] == []

    @pytest.mark.parametrize(
        ("position", "second"),
        [
            # Each minute 600 more. A topic of a million records is deleted, or the positions are set back by as many.
            ("2000000+600x20", 10),
            ("2000000+600x10 1006600+600x10", 0),
        ],
    )
    def test_what_is_written_and_read_is_no_more_than_that_where_a_sum_falls(
        self, position: str, second: int, chart: Chart, tmp_path: Path
    ) -> None:
        (panel,) = [panel for panel in dashboard(chart)["panels"] if panel["title"] == "Written and read"]
        asked = [
            {
                "expr": target["expr"].replace("$namespace", "shop").replace("$consumergroup", "clicks"),
                "eval_time": "13m",
                "exp_samples": [{"labels": OF_GROUP, "value": second}],
            }
            for target in panel["targets"]
        ]
        series = [
            {"series": f"{name}{OF_GROUP}", "values": position}
            for name in ("shardherd_group_end_offset", "shardherd_group_committed_offset")
        ]
        test = {"interval": "1m", "input_series": series, "promql_expr_test": asked}
        (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}))
        assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "tests.yaml"))

    def test_what_is_of_groups_is_shown_of_those_that_are_chosen(self, chart: Chart) -> None:
        of_groups = {name for name, labels in known_series().items() if "consumergroup" in labels}
        chosen = 'namespace=~"$namespace", consumergroup=~"$consumergroup"'
        used = [each for query in self.queries(chart) for each in re.findall(r"(shardherd_\w+)(?:\{([^}]*)\})?", query)]
        assert [name for name, selector in used if name in of_groups and chosen not in selector] == []

    def test_panels_do_not_overlap_and_have_their_own_ids(self, chart: Chart) -> None:
        panels = dashboard(chart)["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels) == len({panel["title"] for panel in panels})
        taken = [
            (x, y)
            for place in (panel["gridPos"] for panel in panels)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(taken) == len(set(taken))
        assert max(x for x, _ in taken) < 24

    def test_the_sidecar_finds_it(self, chart: Chart) -> None:
        assert chart.one("ConfigMap", "shardherd-dashboard", EVERYTHING)["metadata"]["labels"]["grafana_dashboard"] == "1"
        values = {"dashboards": {"enabled": True, "namespace": "grafana", "label": "dashboards", "labelValue": "yes"}}
        found = chart.one("ConfigMap", "shardherd-dashboard", values)["metadata"]
        assert (found["namespace"], found["labels"]["dashboards"]) == ("grafana", "yes")


def known_series() -> dict[str, set[str]]:
    """The series of every metric that there is, and their labels."""
    registry = CollectorRegistry()
    operator = OperatorMetrics(registry)
    kinds = {family.name: family.type for family in registry.collect()}
    del operator
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    found: dict[str, set[str]] = {}
    for metric in (each for each in vars(metrics).values() if isinstance(each, Metric)):
        ours = suffixes[kinds[metric.name]] if metric.name in kinds else ("", "_total", "_bucket", "_sum", "_count")
        for suffix in ours:
            found[metric.name + suffix] = {*metric.labels, "le"} if suffix == "_bucket" else set(metric.labels)
    # Of which release it is says Prometheus.
    found[metrics.LEADER.name] |= {"namespace", "job"}
    return found


def test_alerts_and_dashboard_use_only_metrics_and_labels_that_there_are(chart: Chart) -> None:
    recorded = {rule["record"] for group in rules(chart)["groups"] for rule in group["rules"] if "record" in rule}
    expressions = [rule["expr"] for group in rules(chart)["groups"] for rule in group["rules"]]
    expressions += [target["expr"] for panel in dashboard(chart)["panels"] for target in panel["targets"]]
    expressions += [variable["query"] for variable in dashboard(chart)["templating"]["list"]]
    used = {
        (name, label)
        for expression in expressions
        for name, selector in re.findall(r"(shardherd[_:]\w+)(?:\{([^}]*)\})?", expression)
        for label in (re.findall(r"(\w+)\s*[=!]~?", selector) or [""])
    }
    known = known_series()
    assert {name for name, _ in used} - set(known) - recorded == set()
    assert [(name, label) for name, label in used if label and label not in known[name]] == []
    assert len({name for name, _ in used}) > 40


class TestMonitors:
    def test_prometheus_operator_objects_are_off_by_default(self, chart: Chart) -> None:
        assert chart.kinds() & {"ServiceMonitor", "PodMonitor", "PrometheusRule", "NetworkPolicy"} == set()

    def test_the_service_monitor_selects_the_metrics_service_and_no_other(self, chart: Chart) -> None:
        monitor = chart.one("ServiceMonitor", values=EVERYTHING)
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        services = [item for item in chart.render(EVERYTHING) if item["kind"] == "Service"]
        (selected,) = [item for item in services if wanted <= item["metadata"]["labels"].items()]
        assert selected["metadata"]["name"] == "shardherd-metrics"
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint == {"port": "metrics", "path": "/metrics", "honorLabels": True, "interval": "30s"} | AUTHORIZED
        assert endpoint["port"] in {port["name"] for port in selected["spec"]["ports"]}
        assert monitor["metadata"]["labels"]["release"] == "prometheus"

    def test_the_pod_monitor_selects_drivers_where_applications_are(self, chart: Chart) -> None:
        spec = chart.one("PodMonitor", "shardherd-applications", EVERYTHING)["spec"]
        assert spec == {
            "namespaceSelector": {"matchNames": ["shop", "web"]},
            "selector": {"matchLabels": {"shardherd.dev/role": "driver"}},
            "podMetricsEndpoints": [{"port": "metrics", "path": "/metrics", "honorLabels": True} | AUTHORIZED],
        }

    def test_what_monitors_send_is_what_the_operator_asks_for(self, chart: Chart) -> None:
        container, volumes = operator(chart, EVERYTHING)
        environment = {each["name"]: each.get("value") for each in container["env"]}
        assert environment["SHARDHERD_METRICS_TOKEN_FILE"] == "/etc/shardherd/metrics/token"
        (mount,) = [each for each in container["volumeMounts"] if each["name"] == "metrics-token"]
        assert mount == {"name": "metrics-token", "mountPath": "/etc/shardherd/metrics", "readOnly": True}
        (volume,) = [each for each in volumes if each["name"] == "metrics-token"]
        assert volume["secret"] == {"secretName": "scrapers", "items": [{"key": "token", "path": "token"}]}

    def test_by_default_no_token_is_asked_for_and_none_is_sent(self, chart: Chart) -> None:
        container, volumes = operator(chart, {})
        assert [each["name"] for each in container["env"] if "METRICS_TOKEN" in each["name"]] == []
        assert [each["name"] for each in volumes] == ["tmp"]
        monitor = chart.one("ServiceMonitor", values={"prometheus": {"serviceMonitor": {"enabled": True}}})
        assert monitor["spec"]["endpoints"] == [{"port": "metrics", "path": "/metrics", "honorLabels": True}]


class TestDashboardOfKafkaExporter:
    """Every query of kafka_exporter's own dashboard (Grafana's number 7589), its variables filled in, answered by promtool."""

    OF = 'instance=~"10.0.0.7:9090",topic=~"clicks"'

    def series(self) -> list[Json]:
        """Two scrapes a minute for ten minutes: 120 records a minute come in, and 60 are read."""

        def scraped(times: int) -> dict[str, tuple[dict[str, str], float]]:
            row = shards(1, checkpoint=30 * times, begin=0, end=60 * times, lag_records=30 * times)
            registry = CollectorRegistry()
            views = {IDENTITY: view(row, consumers=consumers(1), source="kafka")}
            registry.register(KafkaNames(lambda: views, lambda: {IDENTITY: "shop.clicks"}, 10))
            return {each.name: (each.labels, each.value) for family in registry.collect() for each in family.samples}

        first, second = scraped(1), scraped(2)
        found = []
        for name, (labels, value) in first.items():
            place = {"instance": "10.0.0.7:9090", "job": "shardherd-metrics"}
            of = ",".join(f'{label}="{text}"' for label, text in {**labels, **place}.items())
            found.append({"series": f"{name}{{{of}}}", "values": f"{value:g}+{second[name][1] - value:g}x20"})
        return found

    @pytest.mark.parametrize(
        ("query", "labels", "value"),
        [
            ("sum(rate(kafka_topic_partition_current_offset{%s}[1m])) by (topic)", '{topic="clicks"}', 2),
            (
                "sum(kafka_consumergroup_lag{%s}) by (consumergroup, topic)",
                '{consumergroup="shop.clicks", topic="clicks"}',
                630,
            ),
            ("sum(delta(kafka_topic_partition_current_offset{%s}[5m]) / 5) by (topic)", '{topic="clicks"}', 120),
            (
                "sum(delta(kafka_consumergroup_current_offset{%s}[5m]) / 5) by (consumergroup, topic)",
                '{consumergroup="shop.clicks", topic="clicks"}',
                60,
            ),
            ("sum by (topic) (kafka_topic_partitions{%s})", '{topic="clicks"}', 1),
            ("count by (job) (kafka_consumergroup_current_offset{%s})", '{job="shardherd-metrics"}', 1),
        ],
    )
    def test_a_panel_shows_what_it_should(self, query: str, labels: str, value: float, tmp_path: Path) -> None:
        asked = {"expr": query % self.OF, "eval_time": "10m", "exp_samples": [{"labels": labels, "value": value}]}
        test = {"interval": "30s", "input_series": self.series(), "promql_expr_test": [asked]}
        (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}))
        assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "tests.yaml"))
