"""The JSON of the API: what goes in comes out, and what is wrong is named."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
from msgspec.structs import replace

from shardherd import protocol
from shardherd.core.model import errors
from shardherd.core.model.gauges import Gauge, GaugeKind
from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import (
    CheckpointOutcome,
    CheckpointReply,
    CheckpointRequest,
    CheckpointResult,
    Condition,
    ConfirmedShard,
    ConsumerId,
    ConsumerView,
    FailingCell,
    GroupView,
    Heartbeat,
    HeartbeatReply,
    HeldShard,
    Incarnation,
    LastRebalance,
    Leave,
    ResetReport,
    ResetRow,
    ResetState,
    ResetTo,
    ShardCheckpoint,
    ShardId,
    ShardState,
    ShardVerdict,
    ShardView,
)
from shardherd.core.model.verdicts import Verdict
from shardherd.protocol import wire

RUN = Incarnation("uid-0", 3)
NAME = ConsumerId("clicks-0")
SHARD = ShardId("t/0")
HEARTBEAT = Heartbeat(NAME, RUN, 7, 5, (HeldShard(SHARD, 2), HeldShard(SHARD, 3)), ready=False, draining=True, progress=11)
REPLY = HeartbeatReply(
    revision=5,
    confirmed=(ConfirmedShard(SHARD, 3, 2, 100),),
    fenced=(HeldShard(SHARD, 2),),
    paused=True,
    ordered=True,
    heartbeat_interval=Seconds(0.25),
    session_timeout=Seconds(45.0),
)
IN_CELLS = HeartbeatReply(5, (ConfirmedShard(SHARD, 3, 2, 100, start=80),), cells=6, state_generation=2)
LOST = Heartbeat(NAME, RUN, 8, 5, state_lost=(0, 3))
FULL = Heartbeat(NAME, RUN, 9, 5, gauges=(Gauge(GaugeKind.DISK, "/data", 900, 1000), Gauge(GaugeKind.OWN, "own", 1, 4)))
FAILING = Heartbeat(NAME, RUN, 9, 5, cells_failing=(FailingCell(2, 'a "text" is no number'),))
CHECKPOINT = CheckpointRequest(NAME, RUN, (ShardCheckpoint(SHARD, 3, 2**62),))
CHECKPOINT_REPLY = CheckpointReply(
    (
        CheckpointOutcome(SHARD, CheckpointResult.FENCED, 9, 3, 4, ConsumerId("clicks-1")),
        CheckpointOutcome(SHARD, CheckpointResult.OK, 9, 3),
    )
)
VIEW = GroupView(
    group_epoch=4,
    revision=5,
    shards=(
        ShardView(SHARD, ShardState.TRANSFER, NAME, ConsumerId("clicks-1"), 3, 100, 0, 120, 20, True, False, Seconds(1.5)),
        ShardView(ShardId("t/1"), ShardState.WAIT),
    ),
    consumers=(ConsumerView(NAME, RUN, True, False, 1, Seconds(0.125)),),
    source_reachable=False,
    source_error='no broker answers at "kafka:9092" – ü',
    withheld=(Condition("GroupHasLiveMembers", "stop them"),),
    last_rebalance=LastRebalance(Seconds(1_700_000_000.5), "ConsumerJoined", 3),
    moves=3,
    rebalances=1,
    discovered=True,
    expired=((NAME, RUN),),
    reset=ResetReport("r2", ResetTo.OFFSETS, ResetState.WAITING, "Nothing was changed yet."),
    last_reset=ResetReport(
        "r1",
        ResetTo.LATEST,
        ResetState.DONE,
        "The positions were set.",
        Seconds(1_700_000_000.5),
        shards=2,
        skipped=20,
        rows=(ResetRow(SHARD, 100, 120), ResetRow(ShardId("t/1"), None, 0)),
        manager="kubectl-edit",
    ),
    superseded=((NAME, "uid-old"),),
    silent=((ConsumerId("clicks-1"), RUN),),
    lag_seconds=640,
    verdict=Verdict.STALLED,
    verdicts=(ShardVerdict(SHARD, Verdict.STALLED, Seconds(1_700_000_000.5)),),
)


@pytest.mark.parametrize(
    "value",
    [HEARTBEAT, LOST, FULL, FAILING, REPLY, IN_CELLS, CHECKPOINT, CHECKPOINT_REPLY, Leave(NAME, RUN), VIEW],
    ids=lambda value: type(value).__name__,
)
def test_what_is_written_is_read_again(value: Any) -> None:
    assert protocol.loads(type(value), protocol.dumps(value)) == value


def test_names_are_camel_case_and_durations_are_whole_milliseconds() -> None:
    assert protocol.encode(REPLY) == {
        "revision": 5,
        "confirmed": [{"shard": "t/0", "ownerEpoch": 3, "heldSinceEpoch": 2, "position": 100}],
        "fenced": [{"shard": "t/0", "ownerEpoch": 2}],
        "paused": True,
        "ordered": True,
        "heartbeatIntervalMs": 250,
        "sessionTimeoutMs": 45000,
        "cells": 0,
        "stateGeneration": 0,
    }
    assert protocol.encode(IN_CELLS)["confirmed"] == [
        {"shard": "t/0", "ownerEpoch": 3, "heldSinceEpoch": 2, "position": 100, "start": 80}
    ]
    assert protocol.encode(LOST)["stateLost"] == [0, 3]
    assert protocol.encode(FULL)["gauges"] == [
        {"kind": "disk", "name": "/data", "used": 900, "total": 1000},
        {"kind": "own", "name": "own", "used": 1, "total": 4},
    ]
    assert "cellsFailing" not in protocol.encode(LOST)
    assert protocol.encode(FAILING)["cellsFailing"] == [{"cell": 2, "error": 'a "text" is no number'}]


def test_what_has_a_default_may_be_left_out() -> None:
    body = {"consumer": "clicks-0", "incarnation": {"podUid": "uid-0", "start": 3}, "seq": 1, "revision": 0}

    assert protocol.loads(Heartbeat, json.dumps(body).encode()) == Heartbeat(NAME, RUN, 1, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq": "7"}, 'field Heartbeat.seq is "7"; it must be an integer from 0 to 9223372036854775807'),
        ({"seq": True}, "field Heartbeat.seq is true; it must be an integer"),
        ({"seq": 7.0}, "field Heartbeat.seq is 7.0; it must be an integer"),
        ({"seq": -1}, "field Heartbeat.seq is -1; it must be an integer from 0"),
        ({"seq": 2**63}, "field Heartbeat.seq is 9223372036854775808; it must be an integer"),
        ({"seq": None}, "field Heartbeat.seq is null; it must be an integer"),
        ({"ready": 1}, "field Heartbeat.ready is 1; it must be true or false"),
        ({"consumer": ""}, 'field Heartbeat.consumer is ""; it must be a name of 1 to 512 printable characters'),
        ({"consumer": "a\nb"}, r'field Heartbeat.consumer is "a\nb"; it must be a name'),
        ({"consumer": "\ud800"}, r'field Heartbeat.consumer is "\ud800"; it must be a name'),
        ({"consumer": "x" * 513}, "it must be a name of 1 to 512 printable characters"),
        ({"consumer": 5}, "field Heartbeat.consumer is 5; it must be a name"),
        ({"held": {}}, "field Heartbeat.held is {}; it must be a list"),
        ({"held": [{"shard": "t/0"}]}, "field Heartbeat.held[0].ownerEpoch is missing; send it"),
        ({"held": [{"shard": "t/0", "ownerEpoch": "1"}]}, 'field Heartbeat.held[0].ownerEpoch is "1"'),
        ({"incarnation": "uid-0"}, 'field Heartbeat.incarnation is "uid-0"; it must be an object'),
        ({"incarnation": {"podUid": 1, "start": 1}}, "field Heartbeat.incarnation.podUid is 1; it must be a string"),
        ({"unheardOf": 1}, "unknown field Heartbeat.unheardOf; remove it (known: consumer, incarnation, seq"),
        ({"seq": float("nan")}, "field Heartbeat.seq is NaN; it must be an integer"),
        ({"seq": 10**30}, "field Heartbeat.seq is 1000000000000000000000000000000; it must be an integer"),
        ({"phaseAgeMs": 1.5}, "field Heartbeat.phaseAgeMs is 1.5; it must be an integer from 0 to 9223372036854775807"),
        ({"phaseAgeMs": True}, "field Heartbeat.phaseAgeMs is true; it must be an integer"),
        ({"goesOnInMs": -1}, "field Heartbeat.goesOnInMs is -1; it must be an integer"),
        ({"phase": "asleep"}, 'field Heartbeat.phase is "asleep"; it must be one of warming, idle, waiting, reading, writing'),
        ({"held": None}, "field Heartbeat.held is null; it must be a list"),
        (
            {"gauges": [{"kind": "cpu", "name": "cpu", "used": 1, "total": 2}]},
            'field Heartbeat.gauges[0].kind is "cpu"; it must be one of disk, memory, own',
        ),
        (
            {"gauges": [{"kind": "disk", "name": "/data", "used": 0.5, "total": 1}]},
            "field Heartbeat.gauges[0].used is 0.5; it must",
        ),
        ({"gauges": [{"kind": "disk", "name": "/data", "used": 1}]}, "field Heartbeat.gauges[0].total is missing; send it"),
        ({"zone": None}, "field Heartbeat.zone is null; it must be a string"),
        ({"zone": "\ud800"}, r'field Heartbeat.zone is "\ud800"; it must be a string of printable characters'),
        ({"zone": "a\nb"}, r'field Heartbeat.zone is "a\nb"; it must be a string of printable characters'),
        ({"groupUid": "\x00"}, r'field Heartbeat.groupUid is "\u0000"; it must be a string of printable characters'),
        (
            {"incarnation": {"podUid": "\x7f", "start": 1}},
            r'field Heartbeat.incarnation.podUid is "\u007f"; it must be a string of printable characters',
        ),
        (
            {"incarnation": {"podUid": "u", "start": 1, "x": 1}},
            "unknown field Heartbeat.incarnation.x; remove it",
        ),
    ],
)
def test_what_is_wrong_in_a_request_is_named(change: dict[str, Any], message: str) -> None:
    body = json.dumps(protocol.encode(HEARTBEAT) | change).encode()

    with pytest.raises(errors.InvalidRequestError) as refusal:
        protocol.loads(Heartbeat, body)

    assert message in refusal.value.message


@pytest.mark.parametrize("missing", ["consumer", "incarnation", "seq", "revision"])
def test_what_must_be_sent_is_asked_for(missing: str) -> None:
    body = protocol.encode(HEARTBEAT)
    del body[missing]

    with pytest.raises(errors.InvalidRequestError, match=f"field Heartbeat.{missing} is missing; send it"):
        protocol.loads(Heartbeat, json.dumps(body).encode())


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(errors.InvalidRequestError, match="the body is not JSON"):
        protocol.loads(Heartbeat, body)


def test_what_is_nested_as_deep_as_can_just_be_read_is_refused_as_any_other() -> None:
    for depth in range(1, sys.getrecursionlimit()):
        with pytest.raises(errors.InvalidRequestError, match=r"the body is not JSON|field Heartbeat.consumer is (\[|nested)"):
            protocol.loads(Heartbeat, b'{"consumer":' + b"[" * depth + b"]" * depth + b"}")


@pytest.mark.parametrize("body", [b"[]", b"5", b'"x"', b"null"])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(errors.InvalidRequestError, match="it must be an object"):
        protocol.loads(Heartbeat, body)


def test_an_unknown_result_is_refused_with_the_known_ones() -> None:
    body = protocol.encode(CHECKPOINT_REPLY)
    body["outcomes"][0]["result"] = "maybe"

    with pytest.raises(errors.InvalidRequestError, match="must be one of ok, unchanged, fenced, withheld"):
        protocol.loads(CheckpointReply, json.dumps(body).encode())


def test_a_reply_of_a_newer_coordinator_is_read_without_what_is_unknown() -> None:
    body = protocol.encode(REPLY) | {"novelty": {"a": 1}}

    assert protocol.loads(HeartbeatReply, json.dumps(body).encode()) == REPLY


def test_an_answer_is_read_without_what_is_unknown_in_what_is_sent_as_well() -> None:
    body = protocol.encode(REPLY)
    body["fenced"][0]["novelty"] = 1

    assert protocol.loads(HeartbeatReply, json.dumps(body).encode()) == REPLY


@pytest.mark.parametrize("before", ["7", '"x"', "null", "1.5"])
def test_of_a_field_that_is_sent_twice_the_last_one_counts(before: str) -> None:
    assert protocol.loads(protocol.ForcedCheckpoint, f'{{"offset": {before}, "offset": 5}}'.encode()).offset == 5


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32-be"])
def test_whatever_unicode_json_may_be_written_in_is_read(encoding: str) -> None:
    assert protocol.loads(Heartbeat, protocol.dumps(HEARTBEAT).decode().encode(encoding)) == HEARTBEAT


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.InvalidRequestError, 400),
        (errors.UnauthenticatedError, 401),
        (errors.ForbiddenError, 403),
        (errors.UnknownGroupError, 404),
        (errors.UnknownShardError, 404),
        (errors.StaleIncarnationError, 410),
        (errors.GroupReplacedError, 410),
        (errors.ProtocolVersionError, 426),
        (errors.TooManyRequestsError, 429),
        (errors.NotLeadingError, 503),
        (errors.CoordinatorUnavailableError, 503),
    ],
)
def test_every_error_keeps_its_type_over_the_wire(kind: type[errors.ShardherdError], status: int) -> None:
    error = kind("why", group="demo/clicks", shard=SHARD, consumer=NAME, expected_epoch=3, actual_epoch=4)

    read = protocol.load_error(protocol.error_status(error), protocol.dump_error(error))

    assert protocol.error_status(error) == status
    assert type(read) is kind
    assert vars(read) == vars(error)


def test_an_error_leaves_out_what_does_not_apply() -> None:
    assert json.loads(protocol.dump_error(errors.UnknownGroupError("no such group", group="demo/x"))) == {
        "error": {"code": "UnknownGroup", "message": "no such group", "group": "demo/x"}
    }


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (502, b"<html>bad gateway</html>", errors.CoordinatorUnavailableError),
        (429, b"", errors.CoordinatorUnavailableError),
        (500, b'{"error": {"code": "Novelty", "message": "why"}}', errors.CoordinatorUnavailableError),
        (418, b'{"error": {"code": "Novelty", "message": "why"}}', errors.InvalidRequestError),
        (404, b"[]", errors.InvalidRequestError),
    ],
)
def test_an_answer_that_is_not_ours_is_retried_only_where_that_can_help(
    status: int, body: bytes, kind: type[errors.ShardherdError]
) -> None:
    assert type(protocol.load_error(status, body)) is kind


@pytest.mark.parametrize("header", [None, "2", "5", "one", ""])
def test_another_version_is_refused_with_both_versions(header: str | None) -> None:
    with pytest.raises(errors.ProtocolVersionError, match="this coordinator serves version 3 and 4; use an image"):
        protocol.check_version(header)


def test_our_version_is_accepted() -> None:
    assert protocol.check_version("4") == 4


@pytest.mark.parametrize("value", [HEARTBEAT, CHECKPOINT, Leave(NAME, RUN)], ids=lambda value: type(value).__name__)
def test_a_request_names_its_group(value: Any) -> None:
    named = replace(value, group_uid="uid")

    assert protocol.read_request(type(value), protocol.dumps(named)) == named
    with pytest.raises(errors.InvalidRequestError, match=f"field {type(value).__name__}.groupUid is missing; send the UID"):
        protocol.read_request(type(value), protocol.dumps(value))


def test_the_version_before_is_served_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "PROTOCOL_VERSION", 5)

    assert protocol.served_versions() == (4, 5)
    assert protocol.check_version("4") == 4
    with pytest.raises(errors.ProtocolVersionError, match="names version '3', this coordinator serves version 4 and 5; use an"):
        protocol.check_version("3")


def test_what_has_no_json_is_a_mistake_of_ours() -> None:
    with pytest.raises(TypeError, match="object has no JSON"):
        protocol.encode(object())


def test_two_threads_never_make_decoders_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """msgspec shares between decoders what it is still filling in: a thread that saw half of it has crashed."""
    at_once = Barrier(2)
    met = []

    class Slow:
        def __init__(self, kind: type, *, dec_hook: object) -> None:
            try:
                at_once.wait(0.2)
            except BrokenBarrierError:
                return
            met.append(kind)

        def decode(self, body: bytes) -> bytes:
            return body

    class One: ...

    class Other: ...

    monkeypatch.setattr("msgspec.json.Decoder", Slow)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda kind: wire.read(kind, b"1"), (One, Other))) == [b"1", b"1"]
    assert met == []
