"""What commands that change a group write."""

from __future__ import annotations

from typing import Any

import pytest

from shardherd.inspect import changes
from shardherd.inspect.changes import Reset
from shardherd.inspect.observed import InspectError
from tests.unit.inspect.observations import observed, pod, resource


def patch(wanted: Reset, **spec: object) -> object:
    return changes.resetting(observed(spec=spec), wanted)["spec"]["reset"]


def test_a_pause_is_one_field_and_says_what_comes_of_it() -> None:
    runs, stands = observed(), observed(spec={"paused": True})
    assert (changes.paused(True), changes.paused(False)) == ({"spec": {"paused": True}}, {"spec": {"paused": False}})
    waits = "micro-batches end and are checkpointed, then nothing is read until it is resumed"
    said = [
        (True, True, waits, f"shop/clicks is paused: {waits}"),
        (False, False, None, "shop/clicks was not paused: nothing was changed"),
        (True, False, None, "shop/clicks is paused already: nothing was changed"),
        (False, True, None, "shop/clicks is resumed"),
    ]
    answers = [changes.pausing(there, wanted) for there in (runs, stands) for wanted in (True, False)]
    assert [answer.data for answer in answers] == [
        {"group": "shop/clicks", "paused": paused, "changed": changed, "waits": waits, "message": message}
        for paused, changed, waits, message in said
    ]
    assert [answer.text() for answer in answers] == [f"{message}\n" for *_, message in said]


def test_a_drain_is_a_label_of_the_pod() -> None:
    drained = observed(pods=(pod("clicks-0", labels={"shardherd.dev/cordoned": "true"}), pod("clicks-1")))
    assert changes.cordoned(True) == {"metadata": {"labels": {"shardherd.dev/cordoned": "true"}}}
    assert changes.cordoned(False) == {"metadata": {"labels": {"shardherd.dev/cordoned": None}}}
    said = [
        ("clicks-0 is drained already, and holds 2 shards: nothing was changed", False),
        ("clicks-0 takes shards again", True),
        ("clicks-1 is to give up its 2 shards and gets none, until `drain --undo` or its pod is replaced", True),
        ("clicks-1 was not drained: nothing was changed", False),
    ]
    answers = [changes.draining(drained, name, undo) for name in ("clicks-0", "clicks-1") for undo in (False, True)]
    assert [(answer.text(), changed) for answer, changed in answers] == [(f"{message}\n", changed) for message, changed in said]
    assert answers[2][0].data == {
        "group": "shop/clicks",
        "consumer": "clicks-1",
        "drained": True,
        "shards": 2,
        "changed": True,
        "waits": "clicks-1 has yet to give up 2 shards",
        "message": said[2][0],
    }
    waits = [answer.data["waits"] for answer, _ in answers if isinstance(answer.data, dict)]
    assert waits == ["clicks-0 has yet to give up 2 shards", None, "clicks-1 has yet to give up 2 shards", None]
    with pytest.raises(InspectError, match=r"^'clicks-7' is no consumer of group shop/clicks: there are clicks-0, clicks-1$"):
        changes.draining(drained, "clicks-7", False)


def test_a_reset_is_declared_as_the_resource_wants_it() -> None:
    nothing = {"timestamp": None, "offsets": None, "shards": None}
    assert patch(Reset("r", "Earliest")) == {"id": "r", "dryRun": True, **nothing, "to": "Earliest"}
    assert patch(Reset("r", "Latest", shards=("clicks/3",))) == {
        "id": "r", "dryRun": True, **nothing, "to": "Latest", "shards": ["clicks/3"],
    }  # fmt: skip
    assert patch(Reset("r", "2026-01-31T12:00:00Z")) == {
        "id": "r", "dryRun": True, **nothing, "to": "Timestamp", "timestamp": "2026-01-31T12:00:00Z",
    }  # fmt: skip
    before = {"id": "old", "to": "Offsets", "dryRun": True, "offsets": {"clicks/1": 7}}
    assert patch(Reset("r", offsets=("clicks/0=1200",), dry_run=False), reset=before, paused=True) == {
        "id": "r", "dryRun": False, **nothing, "to": "Offsets", "offsets": {"clicks/1": None, "clicks/0": 1200},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("reset", "said", "code"),
    [
        (Reset("r", "noon"), "--to is 'noon': write Earliest, Latest or a time such as 2026-01-31T12:00:00Z; or --offset", 2),
        (Reset("r"), "--to is '': write Earliest, Latest or a time", 2),
        (Reset("r", "2026-13-31T12:00:00Z"), "--to is '2026-13-31T12:00:00Z': write Earliest, Latest or a time", 2),
        (Reset("r", "2026-02-30T12:00:00Z"), "--to is '2026-02-30T12:00:00Z': write Earliest, Latest or a time", 2),
        (
            Reset("r", offsets=("clicks/0=1", "clicks/1=1", "clicks/0=2")),
            "--offset names clicks/0 twice, with 1 and 2: leave one of them out",
            2,
        ),
        (Reset("r", offsets=("clicks/0=9223372036854775808",)), "--offset is 'clicks/0=9223372036854775808': write", 2),
        (Reset("r", offsets=("clicks/0=\u0663",)), "--offset is 'clicks/0=\u0663': write topic/partition=offset", 2),
        (
            Reset("r", offsets=("clicks=3",)),
            "--offset is 'clicks=3': write topic/partition=offset, for example clicks/0=1200",
            2,
        ),
        (Reset("r", "Latest", offsets=("a/0=3",)), "--offset names shards and positions: leave --to and --shard out", 2),
        (Reset("r", "Latest", dry_run=False), "shop/clicks is not paused, and a reset is made in a paused group only", 1),
    ],
)
def test_a_reset_that_is_none_is_refused(reset: Reset, said: str, code: int) -> None:
    with pytest.raises(InspectError) as refused:
        changes.resetting(observed(), reset)
    assert (str(refused.value)[: len(said)], refused.value.code) == (said, code)


def test_a_reset_that_is_being_made_is_not_replaced() -> None:
    there = observed(spec={"reset": {"id": "r-1", "to": "Latest", "dryRun": False}}, status={"reset": {"state": "Applying"}})
    with pytest.raises(InspectError, match=r"^reset 'r-1' of shop/clicks is on its way \(Applying\): wait for its end$"):
        changes.resetting(there, Reset("r-2", "Earliest"))


def test_a_plan_is_told_with_its_rows() -> None:
    rows = [{"shard": "clicks/0", "before": 100, "after": 0}, {"shard": "clicks/1", "after": 0}]
    told = {
        "id": "r",
        "state": "Planned",
        "message": "A dry run.",
        "shards": 4,
        "recordsRepeated": 300,
        "recordsSkipped": 0,
        "rows": rows,
    }
    answer = changes.reset_answer(resource(status={"reset": told}), "r")
    assert answer.text() == (
        "Planned: A dry run.\n4 shards; 300 records are read again, 0 are not read.\n\n"
        "SHARD     BEFORE  AFTER\nclicks/0  100     0\nclicks/1  -       0\n\n... and 2 more shards.\n"
    )
    assert (answer.code, answer.data) == (
        0,
        {**told, "rows": [{"shard": "clicks/0", "before": 100, "after": 0}, {"shard": "clicks/1", "before": None, "after": 0}]},
    )


def test_a_reset_that_was_refused_or_not_seen_is_bad_news() -> None:
    refused = changes.reset_answer(resource(status={"reset": {"id": "r", "state": "Refused", "message": "no clicks/9"}}), "r")
    assert (refused.text(), refused.code) == ("Refused: no clicks/9\n", 3)


@pytest.mark.parametrize(
    ("declared", "becomes"),
    [
        ({"id": "r", "dryRun": True}, "it stays declared, and is planned once it does"),
        ({"id": "r", "dryRun": False}, "it stays declared, and is made once it does, if the group is paused then"),
        ({"id": "s", "dryRun": False}, "another reset was declared in its place"),
        ({}, "it is not declared any more"),
    ],
)
def test_of_a_reset_that_was_not_seen_it_is_said_what_becomes_of_it(declared: dict[str, Any], becomes: str) -> None:
    seen = {"reset": {"id": "r", "state": "Planned"}, "observedGeneration": 0}
    answer = changes.reset_answer(resource(spec={"reset": declared} if declared else {}, status=seen), "r")
    said = f"The operator has not answered yet: {becomes}."
    data: Any = answer.data
    assert (answer.text(), answer.code, data["state"], data["message"]) == (f"{said}\n", 3, None, said)
