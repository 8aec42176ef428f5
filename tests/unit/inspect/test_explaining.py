"""Why so many consumers, why this assignment, why a shard stays where it is."""

from __future__ import annotations

import pytest

from shardherd.core.model.nouns import Condition, Growth, ShardId, ShardState
from shardherd.core.model.reasons import REASONS, STUCK_SHARDS
from shardherd.core.planning.diagnosis import stuck_shards
from shardherd.inspect.explaining import explain
from shardherd.inspect.observed import InspectError
from tests.unit.core.planning.builders import observation
from tests.unit.inspect.observations import SINCE, live, observed, pod, record, seen

MOVING = (
    record(0, "clicks-0"),
    record(1, "clicks-0"),
    record(2, "clicks-0", to="clicks-1"),
    record(3, None),
    record(4, None, "WAIT")._replace(parents=(record(0, None).shard, record(5, None).shard)),
    record(5, None, "OVER"),
)
STUCK = {
    "shard": "clicks/2",
    "reason": "NotGivenUp",
    "message": "clicks-0 has not given it up yet; clicks-1 is to have it",
    "since": SINCE,
}


def test_a_group_that_is_well_is_explained_by_its_number_and_its_assignment() -> None:
    assert explain(observed()).text() == (
        "Why 2 consumers (2 ready)?\n"
        "FollowingShards: 4 shards, 2 for each consumer.\n"
        "  means   the operator chooses the number of consumers by the shards (mode Shards)\n"
        "  from    status.scaling\n"
        "\n"
        "Why this assignment (assignor Sticky)?\n"
        "Balanced: 2 consumers with 2 shards each.\n"
        "  means   the shards are spread as they should be\n"
        "  from    condition Balanced, since 2023-11-14T22:10:00Z\n"
        "It would leave all 4 shards where they are.\n"
        "  from    the assignor, asked now\n"
    )


def test_a_group_that_is_not_well_is_explained_by_what_the_operator_says_of_it_with_meaning_and_remedy() -> None:
    there = observed(
        MOVING,
        conditions={
            "Ready": ("False", "CrashLooping", "The application in pod clicks-1 ended with exit code 1."),
            "Balanced": ("False", "Rebalancing", "1 shard moving, 1 held by nobody."),
            "ScalingLimited": ("True", "MaxReplicas", "3 consumers would be right."),
        },
        status={
            "stuckShards": [STUCK],
            "stuckShardsTotal": 3,
            "lastRebalance": {"time": SINCE, "reason": "ConsumerJoined", "moved": 2},
        },
    )
    assert explain(there).text() == (
        "Why 2 consumers (2 ready)?\n"
        "FollowingShards: 4 shards, 2 for each consumer.\n"
        "  means   the operator chooses the number of consumers by the shards (mode Shards)\n"
        "  from    status.scaling\n"
        "MaxReplicas: 3 consumers would be right.\n"
        "  means   more consumers are asked for than scaling.maxReplicas allows\n"
        "  remedy  raise it\n"
        "  from    condition ScalingLimited, since 2023-11-14T22:10:00Z\n"
        "\n"
        "Why this assignment (assignor Sticky)?\n"
        "Rebalancing: 1 shard moving, 1 held by nobody.\n"
        "  means   shards are moving, or held by nobody\n"
        "  from    condition Balanced, since 2023-11-14T22:10:00Z\n"
        "ConsumerJoined: moved 2 shards at 2023-11-14T22:10:00Z\n"
        "  means   a consumer came, or is ready now, and is given its share\n"
        "  from    status.lastRebalance\n"
        "It would move 1 shard, first clicks/3 from nobody to clicks-1.\n"
        "  from    the assignor, asked now\n"
        "\n"
        "Why do these shards not move on (3)?\n"
        "NotGivenUp: clicks/2: clicks-0 has not given it up yet; clicks-1 is to have it\n"
        "  means   it is to go to another consumer, and its holder reads on\n"
        "  remedy  a long micro-batch; after releaseTimeout without progress the holder is replaced, one that waits"
        " for its sink"
        " after sinkTimeout\n"
        "  from    status.stuckShards, since 2023-11-14T22:10:00Z\n"
        "... and 2 more: `shardherd explain GROUP SHARD` has each.\n"
        "  from    status.stuckShards\n"
        "\n"
        "Why is Ready False?\n"
        "CrashLooping: The application in pod clicks-1 ended with exit code 1.\n"
        "  means   the application ends; the message has its exit code and last words\n"
        "  remedy  read the driver's log (--previous); on one machine: shardherd local logs CONSUMER --previous\n"
        "  from    condition Ready, since 2023-11-14T22:10:00Z\n"
    )


def test_a_group_of_which_the_operator_has_said_nothing_says_where_to_look() -> None:
    new = observed(stored=None)
    del new.resource["status"]  # type: ignore[attr-defined]
    assert explain(new).text() == (
        "Why this many consumers?\nThe operator has not decided yet: see `shardherd doctor`.\n  from    status\n"
    )


def lines(there: object, about: str, question: str) -> list[str]:
    sections = explain(there, about).text().split("\n\n")  # type: ignore[arg-type]
    return [line for section in sections if section.startswith(question) for line in section.splitlines()[1:]]


def test_a_shard_is_explained_by_its_state_and_by_what_the_assignor_says() -> None:
    assert explain(observed(), "clicks/0").text() == (
        "Where is clicks/0?\n"
        "ALREADY_ALLOC: one consumer holds it and reads it, held by clicks-0 under epoch 1; the next record to read is 100\n"
        "  from    the stored ownership\n"
        "\n"
        "Does clicks/0 move on?\n"
        "It moves on, or has nothing to read: the operator does not count it among those that stand still.\n"
        "  from    status.stuckShards\n"
        "\n"
        "Why does clicks-0 hold it?\n"
        "It leaves it with clicks-0.\n"
        "  from    the assignor, asked now\n"
    )


def test_a_shard_that_stands_still_says_what_the_status_says() -> None:
    there = observed(MOVING, status={"stuckShards": [STUCK], "stuckShardsTotal": 1})
    assert lines(there, "clicks/2", "Why does clicks/2") == [
        "NotGivenUp: clicks/2: clicks-0 has not given it up yet; clicks-1 is to have it",
        "  means   it is to go to another consumer, and its holder reads on",
        "  remedy  a long micro-batch; after releaseTimeout without progress the holder is replaced, one that waits"
        " for its sink"
        " after sinkTimeout",
        "  from    status.stuckShards, since 2023-11-14T22:10:00Z",
    ]


def test_a_shard_that_the_status_does_not_name_is_diagnosed_as_the_operator_would() -> None:
    paused = {"Ready": ("False", "Paused", "spec.paused is true; nothing is granted or moved")}
    there = observed(MOVING, conditions=paused)

    def said(number: int) -> list[str]:
        return lines(there, f"clicks/{number}", f"Why does clicks/{number}")[:1]

    assert said(0) == ["Paused: spec.paused is true; nothing is granted or moved"]
    assert said(2) == ["NotGivenUp: clicks-0 has not given it up yet; clicks-1 is to have it"]
    assert said(3) == ["NoHolder: nothing is granted: spec.paused is true; nothing is granted or moved"]
    assert said(4) == [
        "WaitsForParents: in an ordered group it waits until the shards that come before it are read to their ends: clicks/0"
    ]
    assert said(5) == []


GREW = "topic clicks grew from 1 to 2 partitions, and it waits for clicks/0"


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((), f"{GREW}: how far that must be read is looked up once producers have noticed (spec.source.kafka.growth)"),
        (((ShardId("clicks/0"), 120),), f"{GREW} to be read to 120; it is read to 100"),
    ],
    ids=["before its cutover offset is taken", "until it is reached"],
)
def test_a_shard_that_waits_since_its_topic_grew_says_for_what_and_how_far_that_is_and_by_the_status_since_when(
    ends: tuple[tuple[ShardId, int], ...], said: str
) -> None:
    grew = Growth("clicks", 1, 2, ends, keeps=True)
    picture = live(seen(0, "clicks-0", lag=50), seen(1, None, state=ShardState.WAIT, lag=20, age=90.0), growths=(grew,))
    rows, total = stuck_shards(observation(view=picture), None)

    def answer(**status: object) -> list[str]:
        return lines(observed(view=picture, status=status), "clicks/1", "Why does clicks/1")

    about = [
        "  means   the group is ordered, and the shards before it are not read to their ends, or, where its topic grew,"
        " to their cutover offsets",
        "  remedy  none: look at what keeps those",
    ]
    assert answer() == [f"WaitsForParents: {said}", *about, "  from    the coordinator"]
    assert answer(stuckShards=rows, stuckShardsTotal=total) == [
        f"WaitsForParents: clicks/1: {said}",
        *about,
        "  from    status.stuckShards, since 2023-11-14T22:11:50Z",
    ]


def test_what_the_coordinator_shows_is_in_the_answer_if_it_was_asked() -> None:
    gone = live(seen(0, "clicks-0", lag=50), seen(1, None, present=False), withheld=(Condition("Resetting", "reset r-1"),))
    there = observed(view=gone)
    assert lines(there, "clicks/0", "Where") == [
        "ALREADY_ALLOC: one consumer holds it and reads it, held by clicks-0 under epoch 1; the next record to read is 100,"
        " of 150 there are, 50 to go",
        "  from    the coordinator",
    ]
    assert lines(there, "clicks/0", "Why does clicks/0")[0] == "Resetting: reset r-1"
    assert lines(there, "clicks/1", "Why does clicks/1")[0] == (
        "The source does not have it any more (its topic was deleted, or is out of sight)."
    )


def test_a_shard_that_is_read_to_its_end_says_so_and_one_that_the_status_may_not_name_says_that() -> None:
    there = observed(view=live(seen(0, "clicks-0"), seen(1, "clicks-0", lag=3)), status={"stuckShardsTotal": 7})
    assert lines(there, "clicks/0", "Does") == ["All that there is of it is read.", "  from    the coordinator"]
    assert lines(there, "clicks/1", "Does") == [
        "It moves on, or has nothing to read: the operator does not count it among those that stand still; the status names"
        " only the first of those that stand still.",
        "  from    status.stuckShards",
    ]


def test_of_a_shard_of_brokers_that_do_not_answer_it_is_not_said_that_it_moves_on() -> None:
    away = {"SourceReachable": ("False", "SourceUnavailable", "no Kafka broker answers at kafka:9092")}
    for view in (None, live(seen(0, "clicks-0"))):
        assert lines(observed(conditions=away, view=view), "clicks/0", "Does")[:2] == [
            "SourceUnavailable: no Kafka broker answers at kafka:9092",
            "  means   the brokers do not answer, refuse us, or have no such topic, or none that matches topicPattern, or"
            " topicPattern is no regular expression of RE2, or a Secret with credentials cannot be used; the message names them"
            " and the error",
        ]


def test_a_consumer_is_explained_by_what_it_holds_and_how_it_is() -> None:
    assert explain(observed(), "clicks-1").text() == (
        "Why does clicks-1 hold 2 shards?\n"
        "It holds clicks/2, clicks/10.\n"
        "  from    the stored ownership\n"
        "It would have 2 shards; now it has, or is about to have, 2; the others have 2 to 2.\n"
        "  from    the assignor, asked now\n"
        "\n"
        "How is clicks-1?\n"
        "It is ready.\n"
        "  from    pod status\n"
    )


def test_a_consumer_that_is_drained_or_in_trouble_says_so() -> None:
    pods = (
        pod("clicks-0", labels={"shardherd.dev/cordoned": "true"}),
        pod("clicks-1", ready=False, waiting={"reason": "ErrImagePull"}),
    )
    there = observed(MOVING, pods=pods, status={"stuckShards": [STUCK], "stuckShardsTotal": 1})
    assert lines(there, "clicks-0", "Why does clicks-0") == [
        "It holds clicks/0, clicks/1, clicks/2; it is to give up clicks/2.",
        "  from    the stored ownership",
        "Cordoned: Its label asks that it holds nothing: `shardherd drain GROUP CONSUMER --undo` takes the label off.",
        "  from    pod label shardherd.dev/cordoned",
        "It gives nothing to it: it is not ready, drains, is cordoned, or is not known to the group.",
        "  from    the assignor, asked now",
    ]
    assert lines(there, "clicks-0", "Why does clicks/2")[0].startswith("NotGivenUp: ")
    assert lines(there, "clicks-1", "How")[:2] == [
        'ImageUnavailable: Pod clicks-1 cannot get the image "example/clicks:1" (ErrImagePull). Correct'
        " spec.application.image, or"
        " spec.application.imagePullSecrets.",
        "  means   the kubelet cannot get the image",
    ]
    heard = lines(observed(view=live(seen(0, "clicks-0"))), "clicks-0", "How")
    assert heard[2:] == ["It is reading, for 4 s by now.", "  from    its heartbeats"]


def test_a_consumer_that_the_operator_calls_silent_is_not_said_to_be_starting() -> None:
    silent = "clicks-1, clicks-7 run, but are not ready, and the operator hears nothing more."
    for name, said in (
        ("clicks-1", f"ConsumerSilent: {silent}"),
        ("clicks-0", "It is starting, or its probe fails: see its log."),
    ):
        there = observed(
            MOVING, pods=(pod(name, ready=False),), conditions={"ConsumersReady": ("False", "ConsumerSilent", silent)}
        )
        assert lines(there, name, f"How is {name}?")[0] == said


def test_what_is_neither_shard_nor_consumer_is_refused_with_what_there_is() -> None:
    with pytest.raises(InspectError) as refused:
        explain(observed(), "clicks-7")
    assert (str(refused.value), refused.value.code) == (
        "'clicks-7' is neither a consumer nor a shard of group shop/clicks: consumers are clicks-0, clicks-1; shards are named"
        " topic/partition, see `shardherd shards clicks`",
        4,
    )


@pytest.mark.parametrize("reason", [each for each in REASONS if STUCK_SHARDS in each.places], ids=lambda each: each.value)
def test_every_reason_of_a_shard_that_stands_still_is_told_as_in_the_documentation(reason: object) -> None:
    value, meaning = reason.value, reason.meaning  # type: ignore[attr-defined]
    row = {"shard": "clicks/0", "reason": value, "message": "so it is", "since": SINCE}
    answer = explain(observed(status={"stuckShards": [row], "stuckShardsTotal": 1}), "clicks/0")
    assert isinstance(answer.data, dict)
    told = answer.data["answers"][1]
    assert (told["reason"], told["message"], told["means"]) == (value, "clicks/0: so it is", meaning.replace("`", ""))


def test_every_state_of_a_shard_has_words() -> None:
    from shardherd.core.planning.explaining import STATES

    assert set(STATES) == set(ShardState)
