"""The OpenAPI document: valid, complete, and of one mind with what is written and read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from shardherd import protocol
from shardherd.coordinator.openapi import OPERATIONS, document
from shardherd.core.model import errors
from shardherd.core.model.nouns import Leave
from shardherd.core.model.positions import MAX_POSITION
from shardherd.core.model.requests import ForceCheckpointReply
from tests.unit.client.test_client import NAME, RESET, RUN
from tests.unit.client.test_protocol import CHECKPOINT, CHECKPOINT_REPLY, HEARTBEAT, REPLY, VIEW
from tests.unit.coordinator.test_api import Service, service

__all__ = ["service"]

DOCUMENT = document()


def errors_of(name: str, body: Any) -> list[str]:
    """What does not fit the schema of this name."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return [error.message for error in Draft202012Validator(schema).iter_errors(body)]


def test_it_is_a_valid_openapi_document() -> None:
    assert list(OpenAPIV31SpecValidator(DOCUMENT).iter_errors()) == []


@pytest.mark.parametrize(
    "value",
    [
        HEARTBEAT,
        REPLY,
        CHECKPOINT,
        CHECKPOINT_REPLY,
        Leave(NAME, RUN, "uid", stopped=True),
        VIEW,
        RESET,
        ForceCheckpointReply("careful"),
        protocol.ForcedCheckpoint(7),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_written_fits_its_schema(value: Any) -> None:
    assert errors_of(type(value).__name__, protocol.encode(value)) == []


@pytest.mark.parametrize(
    "change", [{"seq": "7"}, {"seq": -1}, {"consumer": ""}, {"held": {}}, {"incarnation": {"podUid": "uid"}}, {"unheardOf": 1}]
)
def test_what_is_refused_does_not_fit_its_schema(change: Mapping[str, Any]) -> None:
    body = protocol.encode(HEARTBEAT) | change

    with pytest.raises(errors.InvalidRequestError):
        protocol.loads(type(HEARTBEAT), json.dumps(body).encode())
    assert errors_of("Heartbeat", body) != []


def test_a_refusal_fits_its_schema() -> None:
    error = errors.FencedEpochError("why", group="g", expected_epoch=3, actual_epoch=4)

    assert errors_of("Error", json.loads(protocol.dump_error(error))) == []


def test_every_call_names_its_errors_by_status_and_code() -> None:
    heartbeat = DOCUMENT["paths"]["/v1/namespaces/{namespace}/consumergroups/{name}/heartbeat"]["post"]

    assert set(heartbeat["responses"]) == {"200", "400", "401", "403", "404", "408", "410", "413", "415", "426", "429", "503"}
    assert "`StaleIncarnation`: Another run of this consumer is the current one" in heartbeat["responses"]["410"]["description"]


async def test_it_is_served_without_a_token_and_lists_every_call_that_is_answered(service: Service) -> None:
    status, served = await service.get("/openapi.json", token="")

    assert (status, served) == (200, DOCUMENT)
    listed = {(method.upper(), path) for path, calls in served["paths"].items() for method in calls}
    assert listed == {(operation.method, operation.path) for operation in OPERATIONS}


def test_every_integer_of_a_message_is_limited() -> None:
    schemas = {name: each for name, each in DOCUMENT["components"]["schemas"].items() if name != "ErrorDetails"}

    def integers(schema: Any) -> list[Any]:
        if isinstance(schema, list):
            return [found for each in schema for found in integers(each)]
        if not isinstance(schema, dict):
            return []
        return [schema] if schema.get("type") == "integer" else integers(list(schema.values()))

    found = integers(list(schemas.values()))
    assert len(found) > 40
    assert {each["minimum"] for each in found} == {0}
    assert all("Milliseconds" in each["description"] for each in found if each.get("maximum") not in (2**63 - 1, MAX_POSITION))
