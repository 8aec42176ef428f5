"""A group that reads Kinesis: what is read of its resource, and what its pods are told."""

from __future__ import annotations

from typing import Any

from shardherd.controller.declared import declared, pod_inputs, template_hash, with_pod_inputs
from shardherd.core.model.nouns import GrowthCutover, KinesisSource
from tests.unit.controller.builders import MANIFESTS, python_resource

ARN = "arn:aws:kinesis:eu-central-1:123456789012:stream/orders"


def group(**kinesis: Any) -> dict[str, Any]:
    source = {"streamName": "orders", "region": "eu-central-1", "startingPosition": "Earliest", **kinesis}
    if "streamARN" in kinesis:
        del source["streamName"]
    application = {"processor": None, "mainApplicationFile": "/opt/app/consumer.py"}
    made = python_resource(application=application, ordered=True)
    made["spec"]["source"] = {"kinesis": source}
    return made


def pod(resource: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = MANIFESTS.stateful_set(resource, 1)["spec"]["template"]["spec"]
    return found


def told(resource: dict[str, Any]) -> dict[str, str]:
    """The variables about where the shards are."""
    environment = {item["name"]: item.get("value", "") for item in pod(resource)["containers"][0]["env"]}
    return {name: value for name, value in environment.items() if "KINESIS" in name or "KAFKA" in name}


def test_a_stream_is_declared_by_name_or_by_arn() -> None:
    assert declared(group()).source == KinesisSource("orders", "eu-central-1")
    full = group(
        streamARN=ARN,
        endpoint="https://kinesis.example",
        credentials={"secretRef": {"name": "aws"}},
        startingPosition="Latest",
    )
    source = declared(full).source
    assert source == KinesisSource(ARN, "eu-central-1", "https://kinesis.example", "aws", "Latest")
    assert isinstance(source, KinesisSource)
    assert source.name == "orders"


def test_nothing_follows_from_the_number_of_its_shards() -> None:
    assert declared(group()).settings.growth_cutover is GrowthCutover.NEVER


def test_pods_are_told_the_stream_and_no_brokers() -> None:
    assert told(group()) == {"SHARDHERD_KINESIS_STREAM": "orders", "SHARDHERD_KINESIS_REGION": "eu-central-1"}
    assert told(group(streamARN=ARN, endpoint="https://kinesis.example", credentials={"secretRef": {"name": "aws"}})) == {
        "SHARDHERD_KINESIS_STREAM": ARN,
        "SHARDHERD_KINESIS_REGION": "eu-central-1",
        "SHARDHERD_KINESIS_ENDPOINT": "https://kinesis.example",
        "SHARDHERD_KINESIS_CREDENTIALS": "/var/run/secrets/shardherd-kinesis",
    }


def test_an_access_key_is_mounted_with_its_token_if_it_has_one() -> None:
    made = pod(group(credentials={"secretRef": {"name": "aws"}}))
    assert [each for each in made["volumes"] if "credentials" in each["name"]] == [
        {
            "name": "kinesis-credentials",
            "projected": {
                "defaultMode": 0o440,
                "sources": [
                    {
                        "secret": {
                            "name": "aws",
                            "items": [
                                {"key": "accessKeyId", "path": "accessKeyId"},
                                {"key": "secretAccessKey", "path": "secretAccessKey"},
                            ],
                        }
                    },
                    {
                        "secret": {
                            "name": "aws",
                            "items": [{"key": "sessionToken", "path": "sessionToken"}],
                            "optional": True,
                        }
                    },
                ],
            },
        }
    ]
    mount = {"name": "kinesis-credentials", "mountPath": "/var/run/secrets/shardherd-kinesis", "readOnly": True}
    assert mount in made["containers"][0]["volumeMounts"]
    assert [each for each in pod(group())["volumes"] if "credentials" in each["name"]] == []


def test_pods_are_replaced_for_another_endpoint_and_not_for_another_start() -> None:
    assert template_hash(group(endpoint="https://a.example")["spec"]) != template_hash(group()["spec"])
    assert template_hash(group(startingPosition="Latest")["spec"]) == template_hash(group()["spec"])


def test_a_declaration_that_is_gone_back_to_has_the_stream_of_then() -> None:
    before, now = group(endpoint="https://a.example"), group(endpoint="https://b.example", startingPosition="Latest")
    back = with_pod_inputs(now, pod_inputs(before["spec"]))
    assert back["spec"]["source"] == {
        "kinesis": {
            "streamName": "orders",
            "region": "eu-central-1",
            "endpoint": "https://a.example",
            "startingPosition": "Latest",
        }
    }
    assert told(back) == told(before)
