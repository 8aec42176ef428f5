"""The archive of a report: what is in it, and what must not be."""

from __future__ import annotations

import io
import json
import tarfile

from shardherd.core.group import ownership
from shardherd.inspect.bundle import archive, files, redacted
from shardherd.inspect.checks import Examined, doctor
from tests.unit.inspect.observations import WALL, observed, stored


def test_secrets_are_left_out_and_names_stay() -> None:
    environment = [
        {"name": "DB_PASSWORD", "value": "hunter2"},
        {"name": "SHARDHERD_GROUP", "value": "clicks"},
        {"name": "SHARDHERD_TOKEN", "value": "hunter2"},
        {"name": "FROM", "valueFrom": {"secretKeyRef": {"name": "kafka", "key": "password"}}},
    ]
    given = {
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
    assert redacted(given) == {
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
        "annotations": {"team": "data"},
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
