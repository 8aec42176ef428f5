"""What is said of consumers that are too full: in conditions, of shards that stand still, and in verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from shardherd.core.model.gauges import NO_WATERMARKS, Gauge, GaugeKind, Marks, Stage, Watermarks
from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import ConsumerId, ConsumerView, GroupSettings, Incarnation, ShardId, ShardState, ShardView
from shardherd.core.model.verdicts import Verdict
from shardherd.core.planning import verdicts
from shardherd.core.planning.conditions import findings
from shardherd.core.planning.diagnosis import why_not_read
from shardherd.core.planning.explaining import of_conditions
from tests.unit.core.planning.builders import course_of, declared, observation, view
from tests.unit.core.planning.test_diagnosis import stuck

DISK = Watermarks(disk=Marks(85, 90, 95))
PERCENT = {Stage.BELOW: 50, Stage.LOW: 86, Stage.HIGH: 91, Stage.FLOOD: 96}


def consumer(number: int, stage: str, shards: int, **fields: Any) -> ConsumerView:
    gauge = Gauge(GaugeKind.DISK, "/data", PERCENT[Stage(stage)], 100)
    name = ConsumerId(f"clicks-{number}")
    values = {"ready": True, "draining": False, **fields}
    return ConsumerView(
        name,
        Incarnation(f"uid-{number}", 1),
        shards=shards,
        heartbeat_age=Seconds(0.0),
        stage=Stage(stage),
        gauges=(gauge,),
        **values,
    )


def shards(*holders: int | None) -> list[ShardView]:
    """Shards of clicks, each held by the consumer of this number, or by nobody."""
    return [
        ShardView(ShardId(f"clicks/{number}"), ShardState.NOT_ALLOC, checkpoint=10, end=1000, lag_records=990)
        if holder is None
        else ShardView(
            ShardId(f"clicks/{number}"),
            ShardState.ALREADY_ALLOC,
            ConsumerId(f"clicks-{holder}"),
            checkpoint=10,
            end=1000,
            lag_records=990,
        )
        for number, holder in enumerate(holders)
    ]


def told(
    rows: Sequence[ShardView], *consumers: ConsumerView, marks: Watermarks = DISK, **fields: Any
) -> dict[str, tuple[str, str, str]]:
    """The conditions, by their types."""
    picture = view(rows, consumers=consumers, **fields)
    seen = observation(declared=declared(settings=GroupSettings(watermarks=marks)), view=picture)
    return {each.type: (each.status, each.reason, each.message) for each in findings(seen, course_of(seen))}


def test_with_room_everywhere_the_condition_is_true() -> None:
    said = told(shards(0, 1), consumer(0, "below", 1), consumer(1, "below", 1))
    assert said["ConsumersHaveRoom"] == ("True", "RoomLeft", "2 consumers below low.")


def test_a_group_without_watermarks_has_no_such_condition() -> None:
    assert "ConsumersHaveRoom" not in told(shards(0), consumer(0, "below", 1), marks=NO_WATERMARKS)


def test_of_a_group_whose_shards_are_not_known_nothing_is_known() -> None:
    assert told([], discovered=False)["ConsumersHaveRoom"][:2] == ("Unknown", "Discovering")


def test_who_is_above_a_watermark_is_named_with_what_is_full_and_the_limit() -> None:
    said = told(shards(0, 1, 2, 3), *(consumer(at, stage, 1) for at, stage in enumerate(("low", "high", "low", "below"))))
    assert said["ConsumersHaveRoom"] == (
        "False",
        "AboveHigh",
        "clicks-1 (disk /data, more than 90%) is above high: it is given no shards, and gives some away. clicks-0 (disk"
        " /data, more than 85%), clicks-2 (disk /data, more than 85%) are above low: each keeps what it holds, and others are"
        " given shards before it.",
    )
    assert said["Balanced"][0] == "True"


def test_the_message_does_not_change_while_a_disk_fills_up() -> None:
    other = consumer(1, "below", 1)
    fuller = so_full(consumer(0, "low", 1), 88)
    assert told(shards(0, 1), consumer(0, "low", 1), other) == told(shards(0, 1), fuller, other)


def so_full(of: ConsumerView, percent: int) -> ConsumerView:
    return replace(of, gauges=(Gauge(GaugeKind.DISK, "/data", percent, 100),))


def test_one_that_has_recovered_and_still_waits_is_named_without_a_gauge() -> None:
    said = told(shards(0, 1), so_full(consumer(0, "low", 1), 84), consumer(1, "below", 1))
    assert said["ConsumersHaveRoom"][2].startswith("clicks-0 is above low")


def test_uneven_is_only_what_those_have_that_are_not_too_full() -> None:
    rows = shards(0, 1, 1, 1, 2, 2, 2)
    assert told(rows, consumer(0, "high", 1), consumer(1, "below", 3), consumer(2, "below", 3))["Balanced"][:2] == (
        "True",
        "Balanced",
    )
    assert told(rows, consumer(0, "below", 1), consumer(1, "below", 3), consumer(2, "below", 3))["Balanced"][1] == "Uneven"


def test_who_is_paused_keeps_the_group_from_being_ready_as_long_as_it_holds_shards() -> None:
    said = told(shards(0, 1), consumer(0, "flood", 1), consumer(1, "below", 1))
    message = "clicks-0 (disk /data, more than 95%) is above flood: it is paused, and gives its shards away."
    assert said["ConsumersHaveRoom"] == ("False", "AboveFlood", message)
    assert said["Ready"] == ("False", "AboveFlood", message)
    assert told(shards(1, 1), consumer(0, "flood", 0), consumer(1, "below", 2))["Ready"][0] == "True"


def test_if_nobody_is_below_low_that_is_said_first() -> None:
    said = told(shards(0, 1), consumer(0, "low", 1), consumer(1, "high", 1), consumer(2, "below", 0, ready=False))
    assert said["ConsumersHaveRoom"][1] == "NoRoom"
    assert said["ConsumersHaveRoom"][2].startswith("Nobody is below low, so nothing is given away. clicks-1 (disk")
    assert said["Ready"][1] != "NoRoom"


def test_shards_that_wait_for_room_keep_the_group_from_being_ready() -> None:
    rows = shards(0, None, None)
    said = told(rows, consumer(0, "high", 1), consumer(1, "flood", 0), consumer(2, "below", 0, cordoned=True))
    assert said["Ready"][:2] == ("False", "NoRoom")
    assert said["Ready"][2].startswith("Nobody is below low, so nothing is given away. 2 shards wait for that. ")
    picture = view(rows, consumers=(consumer(0, "high", 1), consumer(1, "flood", 0)))
    assert why_not_read(picture, rows[1]) == ("NoHolder", "every consumer that could read it is above its high watermark")


def test_a_free_shard_that_somebody_above_low_takes_is_only_not_assigned_yet() -> None:
    assert told(shards(0, None), consumer(0, "low", 1), consumer(1, "high", 0))["Ready"][1] == "ShardsUnassigned"


def test_a_shard_whose_holder_is_paused_says_why_it_stands_still() -> None:
    (row,) = stuck(view(shards(0), consumers=(consumer(0, "flood", 1),)), seconds=75)
    assert (row["reason"], row["message"]) == (
        "AboveFlood",
        "clicks-0 holds it and is paused: it is above its flood watermark",
    )


def test_explain_has_the_condition_with_meaning_and_remedy() -> None:
    written = {"type": "ConsumersHaveRoom", "status": "False", "reason": "AboveFlood", "message": "clicks-0 is above flood."}
    (why,) = of_conditions({"status": {"conditions": [written]}})
    assert why.question == "Why is ConsumersHaveRoom False?"
    assert why.means.startswith("a consumer is above a flood watermark: it is paused until it is below high")
    assert why.remedy == "make room for what the message names: it reads on by itself"


def test_a_shard_whose_holder_is_paused_is_stopped_and_has_its_time_again_when_that_reads_on() -> None:
    history = None
    seen = []
    for second in range(0, 400, 10):
        stage = "flood" if 20 <= second < 200 else "low"
        offset = 10 + min(second, 20)
        row = at(shards(0)[0], offset)
        history = verdicts.looked(history, view((row,), consumers=(consumer(0, stage, 1),)), float(second), float(second))
        seen.append(history.verdict)
    assert seen[19] is Verdict.STOPPED
    assert Verdict.STALLED not in seen[:25]
    assert seen[-1] is Verdict.STALLED


def at(of: ShardView, offset: int) -> ShardView:
    return replace(of, checkpoint=offset, lag_records=1000 - offset, state_age=Seconds(1000.0))
