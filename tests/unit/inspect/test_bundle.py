"""The archive of a report: what is in it, and what must not be."""

from __future__ import annotations

import copy
import gzip
import io
import json
import tarfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardherd.controller.manifests import Manifests
from shardherd.core.group import ownership
from shardherd.inspect.bundle import REMOVED, archive, files, redacted, text
from shardherd.inspect.checks import Examined, doctor
from shardherd.inspect.observed import Happened, Observed
from shardherd.local.schema import admitted
from tests.unit.inspect.observations import SINCE, WALL, condition, live, observed, resource, seen, stored
from tests.unit.local.manifests import Json


def test_secrets_are_left_out_and_names_stay() -> None:
    environment = [
        {"name": "DB_PASSWORD", "value": "hunter2"},
        {"name": "SHARDHERD_GROUP", "value": "clicks"},
        {"name": "SHARDHERD_TOKEN", "value": "hunter2"},
        {"name": "FROM", "valueFrom": {"secretKeyRef": {"name": "kafka", "key": "password"}}},
    ]
    declared = {
        "env": environment,
        "arguments": ["--key", "hunter2"],
        "sparkConf": {"spark.hadoop.fs.s3a.secret.key": "hunter2", "spark.sql.shuffle.partitions": "8"},
        "secretRef": {"name": "kafka", "passwordKey": "password"},
        "serviceAccountName": "shardherd-spark",
        "message": "cannot write to jdbc://me:hunter2@db:5432/x",
        "managedFields": [{"manager": "kubectl"}],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "hunter2", "team": "data"},
        "replicas": 2,
    }
    assert redacted(declared) == {
        "env": [
            {"name": "DB_PASSWORD", "value": "(removed)"},
            {"name": "SHARDHERD_GROUP", "value": "clicks"},
            {"name": "SHARDHERD_TOKEN", "value": "(removed)"},
            {"name": "FROM", "valueFrom": {"secretKeyRef": {"name": "kafka", "key": "password"}}},
        ],
        "arguments": ["(removed)", "(removed)"],
        "sparkConf": {"spark.hadoop.fs.s3a.secret.key": "(removed)", "spark.sql.shuffle.partitions": "8"},
        "secretRef": {"name": "kafka", "passwordKey": "password"},
        "serviceAccountName": "shardherd-spark",
        "message": "cannot write to jdbc://(removed)@db:5432/x",
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "(removed)", "team": "(removed)"},
        "replicas": 2,
    }


def test_the_archive_has_every_answer_and_no_secret_and_is_the_same_each_time() -> None:
    application = {
        "env": [{"name": "DB", "value": "hunter2"}],
        "arguments": ["hunter2"],
        "sparkConf": {"spark.my.password": "hunter2"},
    }
    said = {"Ready": ("False", "CrashLooping", "it said: cannot reach jdbc://me:hunter2@db/x")}
    there = observed(spec={"application": application}, conditions=said)
    checked = doctor(Examined("shop", "shardherd-system", "0.1.0", refused={"server": "away"}))

    packed = archive("shardherd-clicks", files(there, "0.1.0", checked), WALL)

    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        found = {each.name: (tar.extractfile(each) or io.BytesIO()).read().decode() for each in tar.getmembers()}
    assert sorted(found) == [
        f"shardherd-clicks/{name}"
        for name in (
            "doctor.txt", "explain.txt", "group.json", "lag.txt", "ownership.json", "pods.json", "positions.json",
            "rebalance.txt", "shards.txt", "status.txt", "version.txt",
        )
    ]  # fmt: skip
    assert [name for name, text in found.items() if "hunter2" in text] == []
    assert json.loads(found["shardherd-clicks/ownership.json"]) == ownership.encode(stored())
    assert found["shardherd-clicks/version.txt"] == "shardherd 0.1.0\n"
    assert packed == archive("shardherd-clicks", files(there, "0.1.0", checked), WALL)


def test_an_assignor_that_cannot_be_asked_does_not_keep_the_rest_out() -> None:
    found = files(observed(spec={"assignor": "example.Mine"}, stored=None), "0.1.0")
    assert found["rebalance.txt"].startswith('spec.assignor is "example.Mine"')
    assert "ownership.json" not in found


PLANTED = [f"hunter{number}x" for number in range(100, 160)]
"""Secrets, each planted once: what is found in an archive says which it was."""


def everywhere(secrets: list[str]) -> Observed:
    """A group, as a user may declare it, with a secret in each place that can hold one, and the pods that are made of it."""
    left = iter(secrets)

    def secret() -> str:
        return next(left)

    def variables() -> list[Json]:
        return [
            {"name": "DB", "value": secret()},
            {"name": "LOGIN_TOKEN", "value": secret()},
            {"name": "KEPT", "valueFrom": {"secretKeyRef": {"name": "kafka-secret", "key": "the-key"}}},
        ]

    conf = {
        "spark.hadoop.fs.s3n.awsSecretAccessKey": secret(),
        "spark.hadoop.fs.s3a.secret.key": secret(),
        "spark.hadoop.fs.azure.account.key.acct.dfs.core.windows.net": secret(),
        "spark.hadoop.fs.azure.sas.c.a.blob.core.windows.net": secret(),
        "spark.hadoop.fs.cosn.userinfo.secretKey": secret(),
        "spark.driver.extraJavaOptions": f"-Djavax.net.ssl.trustStorePassword={secret()}",
        "spark.executorEnv.API_KEY": secret(),
        "spark.kubernetes.driverEnv.DB_PASS": secret(),
        "spark.jdbc.url": f"jdbc:postgresql://h/db?user=u&password={secret()}",
        "spark.my.thing": secret(),
        "spark.executor.cores": secret(),
        "spark.sql.shuffle.partitions": "48",
        "spark.dynamicAllocation.executorIdleTimeout": "77s",
    }

    def template(container: str) -> Json:
        original = json.dumps({"env": secret()})
        return {
            "metadata": {"annotations": {"kapp.k14s.io/original": original, "shardherd.dev/note": "ours"}},
            "spec": {
                "containers": [
                    {
                        "name": container,
                        "env": variables(),
                        "args": ["--key", secret()],
                        "livenessProbe": {
                            "httpGet": {"port": 1, "httpHeaders": [{"name": "Authorization", "value": secret()}]}
                        },
                        "lifecycle": {"preStop": {"exec": {"command": ["curl", secret()]}}},
                    }
                ],
                "volumes": [
                    {"name": "a", "csi": {"driver": "d", "volumeAttributes": {"login": secret()}}},
                    {"name": "b", "secret": {"secretName": "volume-secret", "items": [{"key": "k1", "path": "p1"}]}},
                ],
                "tolerations": [{"key": "spot-nodes", "operator": "Equal", "value": "spot-yes"}],
            },
        }

    security = {
        "protocol": "SASL_SSL",
        "sasl": {
            "mechanism": "OAUTHBEARER",
            "secretRef": {"name": "sasl-secret"},
            "oauth": {"tokenEndpoint": "https://idp/t", "extensions": [{"name": "extension", "value": secret()}]},
        },
    }
    spec = {
        "source": {"kafka": {"security": security}},
        "application": {
            "image": "example/token:7",
            "arguments": [secret()],
            "env": variables(),
            "sparkConf": conf,
            "checkpoint": {"path": f"s3a://AK:{secret()}/re@t@bucket/folder"},
            "driver": {"memory": "3333m", "template": template("driver")},
            "executor": {"instances": 2, "template": template("spark-kubernetes-executor")},
        },
    }
    made = resource(spec=spec)
    said = f'no login: {{"credentials": {{"pw": "{secret()}"}}}}'
    made["status"]["conditions"] += [
        condition("Ours", "False", "CrashLooping", f"conn password={secret()} to https://u:{secret()}@h"),
        condition("Theirs", "False", "AlsoKept", said),
    ]
    made["metadata"]["annotations"] = {"objectset.rio.cattle.io/applied": secret(), "shardherd.dev/declaration": secret()}
    made = admitted(made) | {"status": made["status"]}
    set_ = Manifests("https://c:8443", "shardherd", trust=True).stateful_set(made, 2)
    pods = []
    for number in range(2):
        pod = copy.deepcopy(set_["spec"]["template"])
        pod["metadata"] |= {"name": f"clicks-{number}", "uid": f"uid-clicks-{number}", "namespace": "shop"}
        ended = {"reason": "OOMKilled", "message": f'LoginModule required username="u" password="{secret()}";'}
        waiting = {"reason": "ImagePullBackOff", "message": f"Authorization: Basic {secret()}"}
        pod["status"] = {
            "containerStatuses": [
                {"name": "driver", "ready": False, "state": {"waiting": waiting}, "lastState": {"terminated": ended}}
            ]
        }
        pods.append(pod)
    events = (Happened(SINCE, "SinkFailed", f"PUT https://h/x?sv=1&sig={secret()} --token {secret()}"),)
    return Observed(made, WALL, stored(), pods=tuple(pods), events=events)


def packed(there: Observed) -> str:
    """All the bytes of the archive, and the names in it."""
    return gzip.decompress(archive("shardherd-clicks", files(there, "0.1.0"), WALL)).decode()


def test_no_secret_of_a_group_and_its_pods_is_in_the_archive() -> None:
    there = everywhere(PLANTED)
    given_away = [each for each in PLANTED if each in json.dumps([there.resource, there.pods]) or each in str(there.events)]
    assert len(given_away) > 35

    found = packed(there)
    assert [each for each in PLANTED if each in found] == []
    assert "re@t" not in found
    for kept in (
        "example/token:7", "3333m", "CrashLooping", "AlsoKept", "OOMKilled", "ImagePullBackOff", "SinkFailed", "kafka-secret",
        "the-key", "volume-secret", "sasl-secret", "spot-yes", "https://idp/t", "2 consumers with 2 shards each.", "kafka:9092",
        "s3a://(removed)@bucket/folder", "spark.my.thing", "kapp.k14s.io/original", "SHARDHERD_SPARK_CONF", '"ours"',
    ):  # fmt: skip
        assert kept in found, kept

    group = json.loads(files(there, "0.1.0")["group.json"])
    assert group["status"]["shards"]["total"] == 4
    assert group["spec"]["sessionTimeout"] == there.spec["sessionTimeout"]
    (container,) = json.loads(files(there, "0.1.0")["pods.json"])[0]["spec"]["containers"]
    before = there.pods[0]["spec"]["containers"][0]
    assert container["resources"] == before["resources"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    were = {each["name"]: each.get("value") for each in before["env"]}
    for name in ("SHARDHERD_GROUP", "SHARDHERD_SESSION_TIMEOUT_MS", "SHARDHERD_EXECUTOR_MEMORY", "SHARDHERD_TOKEN_FILE"):
        assert variables[name] == were[name]
    conf = json.loads(variables["SHARDHERD_SPARK_CONF"])
    assert conf.keys() == there.spec["application"]["sparkConf"].keys()
    assert {name: value for name, value in conf.items() if value != REMOVED} == {
        "spark.sql.shuffle.partitions": "48",
        "spark.dynamicAllocation.executorIdleTimeout": "77s",
    }
    template = json.loads(variables["SHARDHERD_EXECUTOR_TEMPLATE"])
    assert template["spec"]["securityContext"]["runAsNonRoot"] is True


def test_what_the_coordinator_says_is_looked_through_too() -> None:
    view = live(seen(0, "clicks-0"), source_reachable=False, source_error="no brokers: sasl.password=hunter2 is wrong")
    found = files(observed(view=view, unseen=("the Lease: https://me:hunter2@h refused",)), "0.1.0")
    assert [name for name, said in found.items() if "hunter2" in said] == []
    assert "the Lease: https://(removed)@h refused" in found["status.txt"]


FREE = ("sparkConf", "env", "args", "arguments", "command", "annotations")
"""Fields below which users write what they like."""


def planted(value: Any, marker: str, *, free: bool = False) -> Any:
    """The same with this marker as the value of every string below these fields, but for names of variables and objects."""
    if isinstance(value, dict):
        return {
            name: item
            if name == "valueFrom" or (free and name == "name") or name.startswith("shardherd.dev/")
            else planted(item, marker, free=free or name in FREE)
            for name, item in value.items()
        }
    if isinstance(value, list):
        # Values of our own are the operator's.
        return [
            item
            if isinstance(item, dict) and str(item.get("name", "")).startswith("SHARDHERD_")
            else planted(item, marker, free=free)
            for item in value
        ]
    return marker if free and isinstance(value, str) else value


@settings(max_examples=20, deadline=None)
@given(
    st.text("abcdefghijklmnopqrstuvwxyz", min_size=12, max_size=20).map("zq{}".format),
    st.sampled_from(["{}", "password={}", "https://{}@h", '{{"a": "{}"}}', '["{}"]', "{} 8", "8 {}", "8g,{}"]),
    st.lists(st.from_regex(r"(spark\.)?[a-zA-Z.]{1,20}", fullmatch=True), max_size=5),
)
def test_nothing_that_users_write_freely_comes_out(marker: str, form: str, keys: list[str]) -> None:
    there = everywhere(PLANTED)
    made: Any = planted(copy.deepcopy(dict(there.resource)), form.format(marker))
    application = made["spec"]["application"]
    application["sparkConf"] |= dict.fromkeys(keys, form.format(marker))
    application["env"] += [{"name": key, "value": form.format(marker)} for key in keys]
    made["metadata"]["annotations"] |= dict.fromkeys(keys, form.format(marker))
    template = Manifests("https://c:8443", "shardherd").stateful_set(made, 1)["spec"]["template"]
    metadata = {"name": "clicks-0", "uid": "uid-clicks-0", **template["metadata"]}
    pods = (planted({**template, "metadata": metadata, "status": {}}, form.format(marker)),)
    assert marker in json.dumps(pods)

    assert marker not in packed(Observed(made, WALL, stored(), pods=pods))


@pytest.mark.parametrize(
    "said",
    [
        "jdbc:postgresql://h/db?user=u&password=SECRET",
        "jdbc:postgresql://h/db?user=u&password=x@SECRET",
        "jdbc:oracle:thin:scott/SECRET@h:1521",
        "s3a://AK:x/SECRET@bucket/path",
        "mongodb://u:x@SECRET@h/db",
        "-Djavax.net.ssl.keyStorePassword=SECRET -Xmx1g",
        "-Dmy.passwd='a SECRET'",
        'required username="u" password="a \\"SECRET";',
        '{"password": "SECRET"}',
        '{"credentials": {"user": "SECRET"}, "n": 1}',
        'refused {"auth": {"user": "SECRET"}}',
        'refused {\\"token\\": \\"SECRET\\"}',
        "refused {'apiKey': 'SECRET'}",
        "Authorization: Token SECRET",
        "sent Bearer SECRETSECRET to it",
        "AWS_SECRET_ACCESS_KEY=SECRET",
        "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=SECRET",
        "https://h/c?sv=1&sig=SECRET&se=2",
        "https://h/c?X-Amz-Signature=SECRET",
        "https://h/c?next=a%3Fpassword%3DSECRET",
        "SECRETS = SECRET",
        "spark-submit --conf spark.my.thing=SECRET",
        "spark-submit --conf spark.executor.cores=SECRET",
        "app.py --password SECRET",
        '["--password", "SECRET"]',
        "ran ['--password', 'SECRET']",
        "<password>SECRET</password>",
        "password: SECRET",
        "-----BEGIN RSA PRIVATE KEY-----\nSECRET\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_secret_in_a_text_is_removed(said: str) -> None:
    found = text(f"{said}\nit ends")
    assert "SECRET" not in found.replace("AWS_SECRET_ACCESS_KEY", "").replace("SECRETS =", "")
    assert REMOVED in found
    assert "SECRET" not in json.dumps(redacted({"message": said})).replace("AWS_SECRET_ACCESS_KEY", "").replace("SECRETS =", "")


@pytest.mark.parametrize(
    "said",
    [
        'MountVolume.SetUp failed for volume "token" : configmap "shardherd-ca" not found',
        "Back-off pulling image example/clicks:1@sha256:0123abcd",
        "brokers kafka-0.auth-kafka:9092,kafka-1:9092 do not answer",
        "4 shards, 2 for each consumer.",
        "spark.sql.shuffle.partitions=8 is too few",
        "--conf spark.executor.memory=4g",
        "shardherd.dev/consumergroup=clicks,shardherd.dev/role=driver",
        "no key: it has none",
    ],
)
def test_other_texts_stay_as_they_are(said: str) -> None:
    assert text(said) == said


def test_names_and_positions_stay_where_a_field_has_the_name_of_a_secret() -> None:
    kept = {
        "caSecretRef": {"name": "ca", "key": "ca.crt"},
        "certificateSecretRef": {"name": "tls", "certificateKey": "tls.crt", "privateKeyKey": "tls.key"},
        "imagePullSecrets": [{"name": "registry"}],
        "serviceAccountToken": {"audience": "shardherd", "expirationSeconds": 3600, "path": "token"},
        "configMap": {"name": "shardherd-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]},
        "configMapKeyRef": {"name": "settings", "key": "url"},
        "automountServiceAccountToken": False,
        "topologyKey": "kubernetes.io/hostname",
        "tolerations": [{"key": "spot", "effect": "NoSchedule", "value": "yes"}],
        "reset": {"offsets": {"auth-tokens/0": 7}},
    }
    assert redacted(kept) == kept


def test_below_the_name_of_a_secret_nothing_stays() -> None:
    given_away = {
        "credentials": {"name": "x", "pw": 12345678},
        "sasl.password": 12345678,
        "apiKeys": [["x"], 1.5],
        "basic.auth.user.info": "u:x",
        "secretRef": {"name": "kafka", "password": "x", "key": {"a": "x"}},
        "parameters": [{"key": "user", "value": "x"}],
        "env": {"A": "x"},
        "sparkConf": "spark.a x",
        "config": {"spark.my.thing": "x"},
    }
    assert redacted(given_away) == {
        "credentials": REMOVED,
        "sasl.password": REMOVED,
        "apiKeys": REMOVED,
        "basic.auth.user.info": REMOVED,
        "secretRef": {"name": "kafka", "password": REMOVED, "key": REMOVED},
        "parameters": [{"key": REMOVED, "value": REMOVED}],
        "env": {"A": REMOVED},
        "sparkConf": REMOVED,
        "config": {"spark.my.thing": REMOVED},
    }
