"""The resource definition on a real API server: what it refuses, in which words, and what it fills in."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.cluster import Cluster
from shardherd.adapters.kubernetes.api import MERGE_PATCH, ApiError, KubernetesApi
from shardherd.controller.declared import declared
from shardherd.controller.merge import merge
from shardherd.core.observed import Scaling, ScalingMode
from tests.harness.cluster import Names
from tests.harness.definition import define_resource
from tests.integration.controller.bench import RESOURCE, ROOT, unique

Json = dict[str, Any]

SPEC: Json = {
    "source": {"kafka": {"bootstrapServers": "kafka:9092", "topics": ["clicks"]}},
    "application": {"image": "example/clicks:1", "mainApplicationFile": "/app.py"},
}


class Groups:
    """Makes groups in a namespace of its own, by dry runs unless it is to last."""

    def __init__(self, api: KubernetesApi, namespace: str) -> None:
        self.api = api
        self.path = f"/apis/shardherd.dev/v1alpha1/namespaces/{namespace}/consumergroups"

    def make(self, name: str = "clicks", *, last: bool = False, **spec: Any) -> Json:
        """The group as the server would keep it, `spec` merged over an ordinary one."""
        body = {
            "apiVersion": "shardherd.dev/v1alpha1",
            "kind": "ConsumerGroup",
            "metadata": {"name": name},
            "spec": merge(copy.deepcopy(SPEC), spec),
        }
        query = {"fieldValidation": "Strict"} | ({} if last else {"dryRun": "All"})
        made: Json = self.api.call("POST", self.path, body, query=query)
        return made

    def refused(self, name: str = "clicks", **spec: Any) -> str:
        """What the server says to this group."""
        with pytest.raises(ApiError) as refusal:
            self.make(name, **spec)
        assert refusal.value.status in (400, 422)
        return str(refusal.value)

    def change(self, name: str, **spec: Any) -> Json:
        """Change a group that lasts."""
        changed: Json = self.api.call("PATCH", f"{self.path}/{name}", {"spec": spec}, content_type=MERGE_PATCH)
        return changed


@pytest.fixture(scope="module")
def groups(cluster: Cluster, names: Names) -> Iterator[Groups]:
    define_resource(cluster)
    namespace = unique(names, "crd")
    cluster.kubectl("create", "namespace", namespace)
    api = KubernetesApi.from_kubeconfig(cluster.kubeconfig)
    yield Groups(api, namespace)
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")
    api.close()


KAFKA = "spec.source.kafka"

SCRAM = {
    "protocol": "SASL_SSL",
    "sasl": {"mechanism": "SCRAM-SHA-512", "username": "app", "secretRef": {"name": "kafka"}},
    "tls": {"caSecretRef": {"name": "kafka-ca"}},
}
MUTUAL = {"protocol": "SSL", "tls": {"certificateSecretRef": {"name": "clicks-tls"}, "verifyHostname": False}}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param(
            {"source": {"kafka": None}},
            "spec.source must name exactly one source: set spec.source.kafka",
            id="no source",
        ),
        pytest.param(
            {"source": {"kinesis": {}}},
            'unknown field "spec.source.kinesis"',
            id="a source that this version does not know",
        ),
        pytest.param(
            {"source": {"kafka": {"topicPattern": "click.*"}}},
            f"{KAFKA} has both topics and topicPattern: remove one of them",
            id="topics and a pattern",
        ),
        pytest.param(
            {"source": {"kafka": {"topics": None, "topicPattern": "(?!internal).*"}}},
            f"{KAFKA}.topicPattern must be a regular expression of RE2, which has no lookaround and no backreferences",
            id="a pattern that cannot be matched in bounded time",
        ),
        pytest.param(
            {"source": {"kafka": {"topics": None, "topicPattern": "clicks("}}},
            "error parsing regexp: missing closing )",
            id="a pattern that is none",
        ),
        pytest.param(
            {"source": {"kafka": {"topics": None}}},
            f"{KAFKA} has neither topics nor topicPattern: set one of them",
            id="neither topics nor a pattern",
        ),
        pytest.param(
            {"source": {"kafka": {"topics": ["not a topic"]}}},
            f"{KAFKA}.topics[0] in body should match '^[a-zA-Z0-9._-]+$'",
            id="a name that no topic can have",
        ),
        pytest.param(
            {"source": {"kafka": {"topics": ["a", "a"]}}},
            f'{KAFKA}.topics[1]: Duplicate value: "a"',
            id="a topic twice",
        ),
        pytest.param(
            {"source": {"kafka": {"bootstrapServers": "kafka"}}},
            f'{KAFKA}.bootstrapServers "kafka" is not a list of addresses: write host:port, several separated by "," '
            "without spaces",
            id="an address without a port",
        ),
        pytest.param(
            {"source": {"kafka": {"startingPosition": "Middle"}}},
            'Unsupported value: "Middle": supported values: "Earliest", "Latest"',
            id="a position that does not exist",
        ),
        pytest.param(
            {"source": {"kafka": {"security": {"protocol": "SASL_SSL"}}}},
            f"{KAFKA}.security.protocol SASL_SSL needs a user: set sasl",
            id="SASL without a user",
        ),
        pytest.param(
            {
                "source": {
                    "kafka": {"security": {"protocol": "SSL", "sasl": {"mechanism": "PLAIN", "secretRef": {"name": "a"}}}}
                }
            },
            f"{KAFKA}.security.protocol SSL uses no SASL: remove sasl, or set SASL_PLAINTEXT or SASL_SSL",
            id="a user without SASL",
        ),
        pytest.param(
            {"source": {"kafka": {"security": {"protocol": "PLAINTEXT", "tls": {}}}}},
            f"{KAFKA}.security.protocol PLAINTEXT uses no TLS: remove tls, or set SSL or SASL_SSL",
            id="authorities without TLS",
        ),
        pytest.param(
            {"source": {"kafka": {"security": {"protocol": "SASL_SSL", "sasl": {"mechanism": "PLAIN", "password": "x"}}}}},
            'unknown field "spec.source.kafka.security.sasl.password"',
            id="a password itself",
        ),
        pytest.param(
            {"sessionTimeout": "8s"},
            "spec.sessionTimeout (8s) must be at least 3 x spec.heartbeatInterval (3s), or one lost heartbeat expires a "
            "consumer: raise the one or lower the other",
            id="a session that one lost heartbeat ends",
        ),
        pytest.param(
            {"ordered": True, "sessionTimeout": "17s"},
            "spec.sessionTimeout (17s) must be at least 15s and 6 x spec.heartbeatInterval (3s) when spec.ordered is true, "
            "or a consumer has no time to stop itself: raise it",
            id="an ordered group's session of less than six heartbeats",
        ),
        pytest.param(
            {"ordered": True, "sessionTimeout": "14s", "heartbeatInterval": "1s"},
            "spec.sessionTimeout (14s) must be at least 15s and 6 x spec.heartbeatInterval (1s)",
            id="an ordered group's session of less than 15 s",
        ),
        pytest.param(
            {"heartbeatInterval": "often"},
            "spec.heartbeatInterval in body should match '^([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$'",
            id="a duration that is none",
        ),
        pytest.param(
            {"heartbeatInterval": "100ms"},
            'spec.heartbeatInterval ("100ms") must be a duration from 500ms to 60s, for example 3s',
            id="heartbeats that come too often",
        ),
        pytest.param(
            {"drainTimeout": "0s"},
            'spec.drainTimeout ("0s") must be a duration from 1s to 1h, for example 60s',
            id="no time to drain",
        ),
        pytest.param(
            {"scaling": {"minReplicas": 5, "maxReplicas": 4}},
            "spec.scaling.minReplicas (5) is above spec.scaling.maxReplicas (4): lower the one or raise the other",
            id="limits the wrong way round",
        ),
        pytest.param(
            {"scaling": {"minReplicas": 11}},
            "spec.scaling.minReplicas (11) is above spec.scaling.maxReplicas (10): lower the one or raise the other",
            id="a lower limit above the default of the upper one",
        ),
        pytest.param(
            {"scaling": {"shardsPerConsumer": 0}},
            "spec.scaling.shardsPerConsumer in body should be greater than or equal to 1",
            id="consumers for no shards",
        ),
        pytest.param(
            {"scaling": {"mode": "Guess"}},
            'Unsupported value: "Guess": supported values: "Shards", "Lag", "Fixed", "External"',
            id="a mode that does not exist",
        ),
        pytest.param(
            {"scaling": {"lag": {"targetCatchupSeconds": 60}}},
            "spec.scaling.lag says nothing in mode Shards: remove it, or set spec.scaling.mode to Lag",
            id="settings of the lag in another mode",
        ),
        pytest.param(
            {"scaling": {"mode": "Lag", "shardsPerConsumer": 2}},
            "spec.scaling.shardsPerConsumer says nothing in mode Lag: remove it, or set spec.scaling.mode to Shards",
            id="shards for each consumer in another mode",
        ),
        pytest.param(
            {"scaling": {"mode": "Fixed", "recommendOnly": True}, "replicas": 1},
            "spec.scaling.recommendOnly has nothing to recommend in mode Fixed: remove it, or set spec.scaling.mode to "
            "Shards or Lag",
            id="recommendations of a mode that has none",
        ),
        pytest.param(
            {"scaling": {"mode": "Lag", "lag": {"targetCatchupSeconds": 5}}},
            "spec.scaling.lag.targetCatchupSeconds in body should be greater than or equal to 10",
            id="a backlog that is to be gone at once",
        ),
        pytest.param(
            {"scaling": {"stabilizationWindow": "48h"}},
            'spec.scaling.stabilizationWindow ("48h") must be a duration of at most 24h, for example 5m',
            id="a window of days",
        ),
        pytest.param(
            {"rollout": {"strategy": "InPlace"}},
            "spec.rollout.strategy InPlace needs spec.rejoinGrace, for which shards wait for a consumer that is replaced (it "
            "is 0s): set it to longer than an application takes to start, for example 2m",
            id="shards that do not wait for a consumer that is replaced in place",
        ),
        pytest.param(
            {"rollout": {"progressDeadline": "0s"}},
            'spec.rollout.progressDeadline ("0s") must be a duration from 1s to 24h, for example 10m',
            id="no time for a new version",
        ),
        pytest.param(
            {"scaling": {"mode": "Fixed"}},
            "spec.replicas is not set, and spec.scaling.mode Fixed runs as many consumers as it says: set it",
            id="a fixed number that is not given",
        ),
        pytest.param(
            {"scaling": {"mode": "External"}},
            "spec.replicas is not set, and spec.scaling.mode External runs as many consumers as it says: set it to what to "
            "begin with",
            id="an autoscaler that has nothing to begin with",
        ),
        pytest.param(
            {"replicas": 3},
            "spec.replicas says nothing in spec.scaling.mode Shards, which chooses the number itself: remove it, or set the "
            "mode to Fixed or External",
            id="a number beside a mode that chooses it",
        ),
        pytest.param(
            {"scaling": {"mode": "Fixed"}, "replicas": -1},
            "spec.replicas in body should be greater than or equal to 0",
            id="negative replicas",
        ),
        pytest.param(
            {"assignor": "Magic"},
            'spec.assignor "Magic" is none of Sticky, CooperativeSticky, Range, RoundRobin and Weighted: set one of them, '
            "or a plug-in, whose name has a dot",
            id="an assignor that does not exist",
        ),
        pytest.param(
            {"assignorOptions": {"weights": "Messages"}},
            'Unsupported value: "Messages": supported values: "Records", "Bytes"',
            id="weights of a unit that does not exist",
        ),
        pytest.param(
            {"application": {"image": None}},
            "spec.application.image: Required value",
            id="no image",
        ),
        pytest.param(
            {"application": {"mainApplicationFile": "app.py"}},
            'spec.application.mainApplicationFile "app.py" must be the absolute path of a Python file in the image, '
            "for example /opt/app/app.py",
            id="a file without its path",
        ),
        pytest.param(
            {"application": {"env": [{"name": "SHARDHERD_GROUP", "value": "mine"}]}},
            'spec.application.env: the name "SHARDHERD_GROUP" is reserved: choose one that does not begin with SHARDHERD_',
            id="a reserved variable",
        ),
        pytest.param(
            {"application": {"sparkConf": {"spark.master": "local"}}},
            "spec.application.sparkConf has a key that is set by shardherd: remove spark.master, spark.submit.deployMode,",
            id="Spark settings that are ours",
        ),
        pytest.param(
            {"application": {"executor": {"instances": 3, "dynamicAllocation": {"maxExecutors": 4}}}},
            "spec.application.executor sets both instances (3) and dynamicAllocation: remove one of them",
            id="a fixed number of executors and a range of them",
        ),
        pytest.param(
            {"application": {"executor": {"dynamicAllocation": {"minExecutors": 5, "maxExecutors": 4}}}},
            "spec.application.executor.dynamicAllocation: minExecutors (5) is above maxExecutors (4): lower the one or raise "
            "the other",
            id="limits of executors the wrong way round",
        ),
        pytest.param(
            {"application": {"executor": {"dynamicAllocation": {}}}},
            "spec.application.executor.dynamicAllocation.maxExecutors: Required value",
            id="executors without a limit",
        ),
        pytest.param(
            {"application": {"sparkConf": {"spark.dynamicAllocation.enabled": "true"}}},
            "and spark.executor.instances and spark.dynamicAllocation.enabled, .minExecutors and .maxExecutors",
            id="dynamic allocation behind our back",
        ),
        pytest.param(
            {"application": {"checkpoint": {"path": "/data", "volumeClaimTemplate": {"storageClassName": "fast"}}}},
            "spec.application.checkpoint sets both path and volumeClaimTemplate: remove one of them",
            id="two places for one checkpoint",
        ),
        pytest.param({"shardsPerConsumer": 4}, 'unknown field "spec.shardsPerConsumer"', id="a field in the wrong place"),
        pytest.param(
            {"reset": {"id": "r1", "to": "Timestamp"}},
            'spec.reset.to is Timestamp, which needs spec.reset.timestamp, for example "2026-01-31T12:00:00Z"',
            id="a reset to no time",
        ),
        pytest.param(
            {"reset": {"id": "r1", "to": "Latest", "timestamp": "2026-01-31T12:00:00Z"}},
            "spec.reset.to is Latest, which uses no timestamp: remove it, or set to: Timestamp",
            id="a reset to a time that is not used",
        ),
        pytest.param(
            {"reset": {"id": "r1", "to": "Timestamp", "timestamp": "2026-01-31T12:00:00"}},
            "spec.reset.timestamp in body should match",
            id="a time without a zone",
        ),
        pytest.param(
            {"reset": {"id": "r1", "to": "Offsets"}},
            'spec.reset.to is Offsets, which needs spec.reset.offsets, for example {"clicks/0": 1200}',
            id="a reset to no offsets",
        ),
        pytest.param(
            {"reset": {"id": "r1", "to": "Earliest", "offsets": {"clicks/0": 7}}},
            "spec.reset.to is Earliest, which uses no offsets: remove them, or set to: Offsets",
            id="offsets that are not used",
        ),
        pytest.param(
            {"reset": {"id": "r1", "to": "Offsets", "offsets": {"clicks/0": 7}, "shards": ["clicks/0"]}},
            "spec.reset.shards says nothing beside spec.reset.offsets, which names the shards: remove it",
            id="shards named twice",
        ),
        pytest.param(
            {"reset": {"id": "r1", "to": "Offsets", "offsets": {"clicks/0": -1}}},
            "spec.reset.offsets.clicks/0 in body should be greater than or equal to 0",
            id="a negative offset",
        ),
    ],
)
def test_a_wrong_group_is_refused_with_the_field_the_value_and_the_remedy(groups: Groups, spec: Json, said: str) -> None:
    assert said in groups.refused(**spec)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "a" * 41,
            f'metadata.name "{"a" * 41}" is too long, as the names of its pods are made from it: use at most 40 characters',
        ),
        (
            "web.clicks",
            'metadata.name "web.clicks" cannot name a Service: use lower-case letters, digits and "-", beginning with a letter',
        ),
        (
            "1clicks",
            'metadata.name "1clicks" cannot name a Service: use lower-case letters, digits and "-", beginning with a letter',
        ),
    ],
)
def test_a_name_that_pods_and_services_cannot_be_made_from_is_refused(groups: Groups, name: str, said: str) -> None:
    assert said in groups.refused(name)


def test_the_longest_name_is_accepted(groups: Groups) -> None:
    assert groups.make("a" * 40)["metadata"]["name"] == "a" * 40


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"ordered": True, "sessionTimeout": "18s"}, id="an ordered group's shortest session at 3 s"),
        pytest.param({"sessionTimeout": "9s"}, id="an unordered group's shortest session at 3 s"),
        pytest.param({"source": {"kafka": {"topics": None, "topicPattern": "click.*"}}}, id="a pattern"),
        pytest.param({"source": {"kafka": {"bootstrapServers": "a.b:9092,c-d:9093,10.0.0.1:9094"}}}, id="several brokers"),
        pytest.param({"source": {"kafka": {"bootstrapServers": "[fd00::1]:9092"}}}, id="an IPv6 address"),
        pytest.param({"source": {"kafka": {"security": SCRAM}}}, id="a user in a Secret"),
        pytest.param({"source": {"kafka": {"security": MUTUAL}}}, id="a certificate in a Secret"),
        pytest.param({"scaling": {"minReplicas": 0}}, id="no consumer without shards"),
        pytest.param({"scaling": {"mode": "Lag", "lag": {"targetCatchupSeconds": 60, "maxStep": 1}}}, id="mode Lag"),
        pytest.param({"scaling": {"mode": "Lag", "minReplicas": 0, "recommendOnly": True}}, id="recommendations from zero"),
        pytest.param({"scaling": {"mode": "External"}, "replicas": 0}, id="an autoscaler that begins with nobody"),
        pytest.param({"rejoinGrace": "1h30m"}, id="a duration of two units"),
        pytest.param({"application": {"executor": {"dynamicAllocation": {"maxExecutors": 4}}}}, id="executors as needed"),
        pytest.param(
            {"application": {"executor": {"dynamicAllocation": {"minExecutors": 0, "maxExecutors": 1}, "cores": 2}}},
            id="executors from none on",
        ),
        pytest.param({"reset": {"id": "r1", "to": "Earliest", "shards": ["clicks/0"]}}, id="a reset of one shard"),
        pytest.param(
            {"reset": {"id": "2026-01-31.a", "to": "Timestamp", "timestamp": "2026-01-31T12:00:00.5+01:00", "dryRun": True}},
            id="a reset by time",
        ),
        pytest.param(
            {"reset": {"id": "r1", "to": "Offsets", "offsets": {f"clicks/{number}": number for number in range(1000)}}},
            id="a reset of a thousand shards",
        ),
        pytest.param(
            {"application": {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}}, id="env"
        ),
        pytest.param({"application": {"driver": {"template": {"spec": {"anything": {"goes": 1}}}}}}, id="pod overrides"),
    ],
)
def test_what_is_right_is_accepted(groups: Groups, spec: Json) -> None:
    assert groups.make(**spec)["kind"] == "ConsumerGroup"


@pytest.mark.parametrize("path", sorted(ROOT.glob("spark_apps/*/consumergroup.yaml")), ids=lambda path: path.parent.name)
def test_the_applications_of_this_repository_are_accepted(groups: Groups, path: Path) -> None:
    resource = yaml.safe_load(path.read_text())
    body = {**resource, "metadata": {"name": resource["metadata"]["name"]}}
    made = groups.api.call("POST", groups.path, body, query={"fieldValidation": "Strict", "dryRun": "All"})
    assert declared(made).identity.name == resource["metadata"]["name"]


def test_every_default_is_in_the_schema(groups: Groups) -> None:
    made = groups.make()
    assert made["spec"] == {
        "source": {"kafka": {"bootstrapServers": "kafka:9092", "topics": ["clicks"], "startingPosition": "Earliest"}},
        "ordered": False,
        "assignor": "Sticky",
        "assignorOptions": {"zones": "Prefer", "weights": "Records"},
        "heartbeatInterval": "3s",
        "sessionTimeout": "45s",
        "rejoinGrace": "0s",
        "releaseTimeout": "60s",
        "progressTimeout": "5m",
        "coordinatorLossLimit": "5m",
        "initialAssignmentDelay": "10s",
        "drainTimeout": "60s",
        "paused": False,
        "rollout": {"strategy": "Drain", "progressDeadline": "10m"},
        "scaling": {
            "mode": "Shards",
            "minReplicas": 1,
            "maxReplicas": 10,
            "stabilizationWindow": "5m",
            "recommendOnly": False,
        },
        "application": {
            "image": "example/clicks:1",
            "imagePullPolicy": "IfNotPresent",
            "mainApplicationFile": "/app.py",
            "serviceAccountName": "shardherd-spark",
            "driver": {"cores": 1, "memory": "1g"},
            "executor": {"instances": 1, "cores": 1, "memory": "1g"},
        },
    }
    assert declared(made).scaling == Scaling()
    by_lag = declared(groups.make(scaling={"mode": "Lag", "lag": {}})).scaling
    assert by_lag == declared(groups.make(scaling={"mode": "Lag"})).scaling == Scaling(mode=ScalingMode.LAG)
    assert declared(made).source.group_id == f"{made['metadata']['namespace']}.clicks"


class TestTheKafkaGroup:
    """Its offsets are the durable positions, so it cannot be changed under a group."""

    @pytest.mark.parametrize(
        ("before", "after", "was"),
        [
            ("mine", "yours", '"mine"'),
            ("mine", None, '"mine"'),
            (None, "yours", "the default <namespace>.<name>"),
        ],
    )
    def test_it_cannot_change(self, groups: Groups, names: Names, before: str | None, after: str | None, was: str) -> None:
        name = names.fresh("fixed")
        groups.make(name, last=True, source={"kafka": {"groupId": before} if before else {}})
        with pytest.raises(ApiError) as refusal:
            groups.change(name, source={"kafka": {"groupId": after}})
        assert (
            f"spec.source.kafka.groupId cannot change (it was {was}), as its offsets are the durable positions: "
            "put it back, or create another ConsumerGroup"
        ) in str(refusal.value)

    def test_anything_else_can(self, groups: Groups, names: Names) -> None:
        name = names.fresh("open")
        groups.make(name, last=True)
        changed = groups.change(name, ordered=True, source={"kafka": {"topics": ["clicks", "views"]}})
        assert (changed["spec"]["ordered"], changed["metadata"]["generation"]) == (True, 2)


class TestAReset:
    """It is made once for every id, so what it says cannot change under its id."""

    @pytest.mark.parametrize(
        "after",
        [
            pytest.param({"to": "Latest"}, id="another place"),
            pytest.param({"dryRun": True}, id="a dry run afterwards"),
            pytest.param({"shards": ["clicks/0"]}, id="other shards"),
        ],
    )
    def test_it_cannot_change_under_its_id(self, groups: Groups, names: Names, after: Json) -> None:
        name = names.fresh("reset")
        groups.make(name, last=True, reset={"id": "r1", "to": "Earliest"})
        with pytest.raises(ApiError) as refusal:
            groups.change(name, reset=after)
        assert (
            'spec.reset.id "r1" was declared already, and a reset is made once for every id: give spec.reset.id another value'
        ) in str(refusal.value)
        assert groups.change(name, reset={**after, "id": "r2"})["spec"]["reset"]["id"] == "r2"

    def test_a_dry_run_may_change_and_be_made_under_its_id(self, groups: Groups, names: Names) -> None:
        name = names.fresh("dry")
        groups.make(name, last=True, reset={"id": "r1", "to": "Earliest", "dryRun": True})
        changed = groups.change(name, paused=True, reset={"to": "Latest", "dryRun": False})
        assert changed["spec"]["reset"] == {"id": "r1", "to": "Latest", "dryRun": False}
        assert "reset" not in groups.change(name, paused=False, reset=None)["spec"]


class TestSubresources:
    def test_status_is_apart_from_the_spec(self, groups: Groups, names: Names) -> None:
        name = names.fresh("status")
        groups.make(name, last=True)
        path = f"{groups.path}/{name}"
        both = {"status": {"replicas": 3}, "spec": {"paused": True}}
        through_spec = groups.api.call("PATCH", path, both, content_type=MERGE_PATCH)
        assert (through_spec["spec"]["paused"], through_spec.get("status")) == (True, None)
        both["spec"] = {"paused": False}
        through_status = groups.api.call("PATCH", f"{path}/status", both, content_type=MERGE_PATCH)
        assert (through_status["spec"]["paused"], through_status["status"]) == (True, {"replicas": 3})

    def test_scale_maps_to_replicas_and_the_selector(self, groups: Groups, names: Names) -> None:
        name = names.fresh("scale")
        groups.make(name, last=True, replicas=2, scaling={"mode": "External"})
        path = f"{groups.path}/{name}"
        selector = f"shardherd.dev/consumergroup={name}"
        groups.api.call("PATCH", f"{path}/status", {"status": {"replicas": 1, "selector": selector}}, content_type=MERGE_PATCH)
        scale = groups.api.call("GET", f"{path}/scale")
        assert (scale["spec"], scale["status"]) == ({"replicas": 2}, {"replicas": 1, "selector": selector})
        groups.api.call("PATCH", f"{path}/scale", {"spec": {"replicas": 5}}, content_type=MERGE_PATCH)
        assert groups.api.call("GET", path)["spec"]["replicas"] == 5

    def test_scaling_a_group_that_chooses_its_number_itself_is_refused(self, groups: Groups, names: Names) -> None:
        name = names.fresh("chooses")
        groups.make(name, last=True)
        with pytest.raises(ApiError, match=r"spec.replicas says nothing in spec.scaling.mode Shards"):
            groups.api.call("PATCH", f"{groups.path}/{name}/scale", {"spec": {"replicas": 5}}, content_type=MERGE_PATCH)

    def test_a_number_may_stay_when_the_mode_changes(self, groups: Groups, names: Names) -> None:
        name = names.fresh("stays")
        groups.make(name, last=True, replicas=2, scaling={"mode": "Fixed"})
        changed = groups.change(name, scaling={"mode": "Shards"})
        assert (changed["spec"]["replicas"], changed["spec"]["scaling"]["mode"]) == (2, "Shards")

    def test_a_condition_needs_all_its_parts(self, groups: Groups, names: Names) -> None:
        name = names.fresh("condition")
        groups.make(name, last=True)
        status = {"status": {"conditions": [{"type": "Ready", "status": "Maybe"}]}}
        with pytest.raises(ApiError) as refusal:
            groups.api.call("PATCH", f"{groups.path}/{name}/status", status, content_type=MERGE_PATCH)
        for said in ("lastTransitionTime: Required value", "reason: Required value", 'Unsupported value: "Maybe"'):
            assert said in str(refusal.value)


def test_short_name_category_and_columns(groups: Groups, cluster: Cluster) -> None:
    found = definition(cluster)
    assert (found["names"]["shortNames"], found["names"]["categories"]) == (["shcg"], ["shardherd"])
    columns = found["versions"][0]["additionalPrinterColumns"]
    assert [column["name"] for column in columns if not column.get("priority")] == [
        "Ready",
        "Shards",
        "Assigned",
        "Consumers",
        "Lag",
        "Lag-S",
        "Epoch",
        "Age",
    ]
    cluster.kubectl("get", "shcg,shardherd", "--all-namespaces")


def definition(cluster: Cluster) -> Json:
    """The spec of the definition as the server has it."""
    api = KubernetesApi.from_kubeconfig(cluster.kubeconfig)
    try:
        found: Json = api.call("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{RESOURCE}")["spec"]
    finally:
        api.close()
    return found
