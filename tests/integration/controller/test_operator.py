"""The operator as its own process, on a real API server and a real broker: it starts, leads, serves, and ends as it should."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dev.cluster import Cluster
from dev.cluster.kafka import PASSWORDS, SUPER
from shardherd.adapters.kubernetes.api import MERGE_PATCH, ApiError
from shardherd.client import ConsumerClient
from shardherd.client.ping import ping
from shardherd.core.model.errors import CoordinatorUnavailableError, ForbiddenError, UnauthenticatedError
from shardherd.core.model.nouns import ConsumerId, Heartbeat, Incarnation, ShardId
from tests.harness.cluster import Names
from tests.harness.definition import define_resource
from tests.harness.kafka import KafkaLab
from tests.integration.controller.bench import RESOURCE, unique, until
from tests.integration.controller.process import OperatorProcess, free_port, operating

MEBIBYTE = 1024 * 1024


def accepted(client: ConsumerClient, beat: Heartbeat) -> bool:
    """Whether a heartbeat is answered; not while its group is being loaded."""
    try:
        client.heartbeat(beat, 0)
    except CoordinatorUnavailableError:
        return False
    return True


@pytest.fixture
def operator(cluster: Cluster, names: Names, tmp_path: Path) -> Iterator[OperatorProcess]:
    with operating(cluster, unique(names, "operator"), tmp_path) as process:
        process.start()
        yield process


def test_it_consumes_little_at_rest_and_gives_the_lease_back_when_it_is_told_to_end(operator: OperatorProcess) -> None:
    assert operator.holder() == "operator-0"
    assert operator.http(operator.api_port, "/healthz") == 200
    assert "shardherd_leader 1.0" in operator.metrics()
    assert operator.memory() < 200 * MEBIBYTE
    assert operator.end() == 0
    assert operator.holder() == ""
    assert operator.warned() == []


def test_it_ends_with_an_error_when_another_one_leads(operator: OperatorProcess) -> None:
    operator.api.call("PATCH", operator.lease, {"spec": {"holderIdentity": "another"}}, content_type=MERGE_PATCH)
    assert operator.wait() == 1
    assert [line["level"] for line in operator.logged() if "may not go on" in line["message"]] == ["ERROR"]
    assert operator.holder() == "another"


def test_it_waits_for_the_definition_of_its_resource(operator: OperatorProcess, cluster: Cluster) -> None:
    assert operator.end() == 0
    cluster.kubectl("delete", "crd", RESOURCE)
    operator.start()
    until(lambda: "waiting for the definition of ConsumerGroup" in operator.log.read_text())
    define_resource(cluster)
    operator.group("waiting", topic="there-is-none")

    def shown() -> bool:
        status = operator.api.call("GET", f"{operator.groups}/waiting").get("status", {})
        return any("topic 'there-is-none' does not exist" in item["message"] for item in status.get("conditions", ()))

    until(shown, operator.log.read_text)


def test_a_secret_that_it_may_not_use_is_named_in_the_condition_and_used_once_it_may(
    operator: OperatorProcess, cluster: Cluster, kafka: KafkaLab
) -> None:
    topic, servers = kafka.create(3), kafka.trio.bootstrap("SASL_SSL")
    label = "shardherd.dev/kafka-credentials=true"
    right, guess = PASSWORDS[SUPER], "hunter2"

    def make(secret: str, *values: str, label: str = "") -> None:
        arguments = ["-n", operator.namespace, "secret"]
        authority = f"--from-file={kafka.trio.certificates / 'ca.crt'}"
        cluster.kubectl("create", *arguments, "generic", secret, *(f"--from-literal={value}" for value in values), authority)
        if label:
            cluster.kubectl("label", *arguments, secret, label)

    def mend(secret: str, verb: str, *changes: str) -> None:
        cluster.kubectl(verb, "-n", operator.namespace, "secret", secret, *changes)

    def condition(group: str) -> tuple[str, str]:
        status = operator.api.call("GET", f"{operator.groups}/{group}").get("status", {})
        found = [item for item in status.get("conditions", ()) if item["type"] == "SourceReachable"]
        return (found[0]["status"], found[0]["message"]) if found else ("", "")

    where = f"in namespace '{operator.namespace}'"
    said = {
        "absent": f"there is no Secret 'absent' {where}: create it with the label {label}",
        "unlabelled": f"Secret 'unlabelled' {where} has no label {label}, without which the operator does not use it",
        "keyless": f"Secret 'keyless' {where} has no key 'password': add it, or name another key in spec.source.kafka.security",
        "refused": f"Kafka at {servers} and the operator do not accept each other",
    }
    make("unlabelled", f"password={right}")
    make("keyless", f"passwort={guess}", label=label)
    make("refused", f"password={guess}", label=label)
    for group in said:
        sasl = {"mechanism": "SCRAM-SHA-512", "username": SUPER, "secretRef": {"name": group}}
        security = {"protocol": "SASL_SSL", "sasl": sasl, "tls": {"caSecretRef": {"name": group}}}
        operator.group(group, topic, bootstrapServers=servers, security=security)

    def conditions() -> dict[str, tuple[str, str]]:
        return {group: condition(group) for group in said}

    def explained() -> bool:
        return all(status == "False" and said[group] in message for group, (status, message) in conditions().items())

    until(explained, lambda: (conditions(), operator.log.read_text()))
    password = ("-p", f'{{"stringData": {{"password": "{right}"}}}}')
    make("absent", f"password={right}", label=label)
    mend("unlabelled", "label", label)
    mend("keyless", "patch", *password)
    mend("refused", "patch", *password)
    found = ("True", "3 shards found.")
    until(lambda: conditions() == dict.fromkeys(said, found), lambda: (conditions(), operator.log.read_text()))
    shown = operator.log.read_text() + "".join(str(operator.api.call("GET", f"{operator.groups}/{group}")) for group in said)
    assert [word for word in (guess, right) if word in shown] == []


def test_with_roles_only_it_serves_its_namespace_and_knows_consumers_by_the_clusters_keys(
    cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    namespace = unique(names, "roles")
    with operating(
        cluster, namespace, tmp_path, "--set", f"rbac.clusterRoles=false,watchNamespaces={{{namespace}}}"
    ) as process:
        process.start(SHARDHERD_TOKEN_CHECK="keys")
        topic = unique(names, "roles")
        cluster.kafka_tool("kafka-topics", "--create", "--topic", topic, "--partitions", "2")
        process.group("clicks", topic)
        pods = f"/api/v1/namespaces/{namespace}/pods"
        pod = until(
            lambda: next(
                (each for each in process.api.call("GET", pods)["items"] if each["metadata"]["name"] == "clicks-0"), None
            ),
            process.log.read_text,
        )["metadata"]

        def token(audience: str) -> str:
            bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["name"], "uid": pod["uid"]}
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/shardherd-spark/token"
            made = process.api.call("POST", path, {"spec": {"audiences": [audience], "boundObjectRef": bound}})
            return str(made["status"]["token"])

        def client(token: str) -> ConsumerClient:
            return ConsumerClient(f"http://127.0.0.1:{process.api_port}", namespace, "clicks", lambda: token)

        uid = process.api.call("GET", f"{process.groups}/clicks")["metadata"]["uid"]
        beat = Heartbeat(ConsumerId(pod["name"]), Incarnation(pod["uid"], 1), 1, 0, group_uid=uid)
        with client(token("shardherd")) as ours:
            until(lambda: accepted(ours, beat), process.log.read_text)
            with pytest.raises(ForbiddenError, match="may not update consumergroups/checkpoints"):
                ours.force_checkpoint(ShardId(f"{topic}/0"), 3)
        for wrong in (token("another"), token("shardherd")[:-8] + "AAAAAAAA"):
            with client(wrong) as stranger, pytest.raises(UnauthenticatedError):
                stranger.heartbeat(beat, 0)
        assert {line["level"] for line in process.logged()} == {"INFO"}


def test_with_tls_consumers_believe_it_by_what_it_publishes_beside_them(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    namespace, port = unique(names, "private"), free_port()
    secret, url = f"{namespace}-shardherd-tls", f"https://127.0.0.1:{port}"
    with operating(cluster, namespace, tmp_path) as process:
        # The chart makes it, empty; the operator may not.
        cluster.kubectl("-n", namespace, "create", "secret", "generic", secret)
        process.start(
            SHARDHERD_TLS="auto", SHARDHERD_TLS_PORT=str(port), SHARDHERD_TLS_SECRET=secret, SHARDHERD_COORDINATOR_URL=url
        )
        topic = unique(names, "private")
        cluster.kafka_tool("kafka-topics", "--create", "--topic", topic, "--partitions", "2")
        process.group("clicks", topic)

        def find(path: str) -> dict[str, Any] | None:
            try:
                found: dict[str, Any] = process.api.call("GET", path)
            except ApiError:
                return None
            return found

        published = f"/api/v1/namespaces/{namespace}/configmaps/shardherd-ca"
        authorities = until(lambda: find(published), process.log.read_text)["data"]["ca.crt"]
        stateful_set = until(lambda: find(f"/apis/apps/v1/namespaces/{namespace}/statefulsets/clicks"), process.log.read_text)
        (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
        shown = {item["name"]: item.get("value") for item in container["env"]}
        assert shown["SHARDHERD_COORDINATOR_URL"] == url
        assert shown["SHARDHERD_COORDINATOR_CA_FILE"] == "/var/run/secrets/shardherd/ca.crt"
        file = tmp_path / "ca.crt"
        file.write_text(authorities)
        with (
            ConsumerClient(url, namespace, "clicks", lambda: "forged", ca_file=file) as ours,
            pytest.raises(UnauthenticatedError, match="forged, expired, of a deleted pod, or made for another audience"),
        ):
            ours.group()
        with (
            ConsumerClient(url, namespace, "clicks", lambda: "forged") as stranger,
            pytest.raises(CoordinatorUnavailableError, match=f"the coordinator at {url} is not believed"),
        ):
            stranger.group()
        assert ping(url, 60.0, file)
        assert 'shardherd_callers_refused_total{reason="InvalidToken"} 1.0' in process.metrics()
        assert re.search(r"^shardherd_certificate_expiry_timestamp_seconds 1\.[0-9]+e\+09$", process.metrics(), re.MULTILINE)
        assert process.warned() == []


def test_it_starts_consumers_for_the_shards_of_a_real_topic_and_follows_its_growth(
    operator: OperatorProcess, cluster: Cluster, names: Names
) -> None:
    topic = unique(names, "operator")
    cluster.kafka_tool("kafka-topics", "--create", "--topic", topic, "--partitions", "4")
    operator.group("clicks", topic)

    def replicas() -> int:
        found = operator.api.call("GET", f"/apis/apps/v1/namespaces/{operator.namespace}/statefulsets")["items"]
        return int(found[0]["spec"]["replicas"]) if found else 0

    until(lambda: replicas() == 2, operator.log.read_text)
    cluster.kafka_tool("kafka-topics", "--alter", "--topic", topic, "--partitions", "6")
    until(lambda: replicas() == 3, operator.log.read_text)
    # A restart finds everything as it was.
    assert operator.end() == 0
    operator.start()
    group = f'consumergroup="clicks",namespace="{operator.namespace}",source="kafka"'
    until(lambda: f'shardherd_group_shards{{{group},state="NOT_ALLOC"}} 6.0' in operator.metrics())
    assert replicas() == 3
    operator.api.call("DELETE", f"{operator.groups}/clicks")

    def left() -> list[str]:
        kinds = {"/apis/apps/v1": "statefulsets", "/apis/policy/v1": "poddisruptionbudgets"}
        found = [operator.api.call("GET", f"{base}/namespaces/{operator.namespace}/{kind}") for base, kind in kinds.items()]
        found += [
            operator.api.call("GET", f"/api/v1/namespaces/{operator.namespace}/{kind}")
            for kind in ("services", "pods", "configmaps")
        ]
        return [
            item["metadata"]["name"]
            for answer in found
            for item in answer["items"]
            if item["metadata"]["name"] != "kube-root-ca.crt"
        ]

    until(lambda: not left(), lambda: (left(), operator.log.read_text()), within=60)
    until(lambda: "consumergroup=" not in operator.metrics(), operator.metrics)
