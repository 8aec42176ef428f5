"""What the status of a group answers, question by question."""

from __future__ import annotations

from shardherd.core.planning.explaining import Why, explained, meaning_of_rebalance, said_of
from tests.unit.inspect.observations import SINCE, resource


def test_a_group_that_is_well_is_asked_for_its_number_and_its_assignment_only() -> None:
    assert list(explained(resource())) == [
        Why(
            "Why 2 consumers (2 ready)?",
            "status.scaling",
            "FollowingShards",
            "4 shards, 2 for each consumer.",
            "the operator chooses the number of consumers by the shards (mode Shards)",
        ),
        Why(
            "Why this assignment (assignor Sticky)?",
            f"condition Balanced, since {SINCE}",
            "Balanced",
            "2 consumers with 2 shards each.",
            "the shards are spread as they should be",
        ),
    ]


def test_what_is_not_well_follows_in_the_order_of_the_questions() -> None:
    there = resource(
        spec={"assignor": "Range"},
        conditions={
            "Ready": ("False", "CrashLooping", "The application in pod clicks-1 ended."),
            "ScalingLimited": ("True", "MaxReplicas", "3 consumers would be right."),
        },
        status={
            "stuckShards": [{"shard": "clicks/2", "reason": "NoHolder", "message": "no consumer is ready", "since": SINCE}],
            "stuckShardsTotal": 3,
            "lastRebalance": {"time": SINCE, "reason": "ConsumerJoined", "moved": 1},
        },
    )
    number, assignment = "Why 2 consumers (2 ready)?", "Why this assignment (assignor Range)?"
    stuck = "Why do these shards not move on (3)?"
    said = [(why.question, why.source, why.reason, why.message) for why in explained(there)]
    assert said == [
        (number, "status.scaling", "FollowingShards", "4 shards, 2 for each consumer."),
        (number, f"condition ScalingLimited, since {SINCE}", "MaxReplicas", "3 consumers would be right."),
        (assignment, f"condition Balanced, since {SINCE}", "Balanced", "2 consumers with 2 shards each."),
        (assignment, "status.lastRebalance", "ConsumerJoined", f"moved 1 shard at {SINCE}"),
        (stuck, f"status.stuckShards, since {SINCE}", "NoHolder", "clicks/2: no consumer is ready"),
        (stuck, "status.stuckShards", "", "... and 2 more: `shardherd explain GROUP SHARD` has each."),
        ("Why is Ready False?", f"condition Ready, since {SINCE}", "CrashLooping", "The application in pod clicks-1 ended."),
    ]


def test_a_remedy_that_is_made_by_commands_names_them() -> None:
    reset = "shardherd pause GROUP, shardherd offsets reset GROUP --to Earliest --execute, shardherd resume GROUP"
    assert said_of("SourceRecreated", "Ready") == (
        "the topic was deleted and made again: the checkpoints are those of the old one, and nothing is granted",
        "reset the positions of all of its shards; to read the new topic from its begin: "
        f"{reset} (on one machine with --local)",
    )
    assert said_of("ConsumerSilent", "ConsumersReady")[1].endswith(
        "; to have it started anew at once: kubectl delete pod CONSUMER, on one machine shardherd local kill CONSUMER"
    )


def test_a_group_without_a_status_says_where_to_look() -> None:
    assert list(explained({})) == [
        Why("Why this many consumers?", "status", "", "The operator has not decided yet: see `shardherd doctor`.")
    ]


def test_an_answer_as_text_and_as_values_has_what_there_is() -> None:
    whole = Why("Why?", "status", "NoHolder", "nobody", "it is free", "wait")
    assert whole.lines() == ("NoHolder: nobody", "  means   it is free", "  remedy  wait", "  from    status")
    assert list(whole.json()) == ["question", "reason", "message", "means", "remedy", "source"]
    assert Why("Why?", "status", "", "nobody").lines() == ("nobody", "  from    status")
    assert Why("Why?", "status", "", "nobody").json() == {"question": "Why?", "message": "nobody", "source": "status"}


def test_reasons_are_told_without_marks_and_links() -> None:
    assert said_of("CrashLooping", "Ready") == (
        "the application ends; the message has its exit code and last words",
        "read the driver's log (--previous); on one machine: shardherd local logs CONSUMER --previous",
    )
    assert said_of("CrashLooping", "Balanced") == said_of("NoSuchReason", "Ready") == ("", "")
    assert meaning_of_rebalance("SessionTimeout") == "a consumer was expired: it was silent for sessionTimeout"
    assert meaning_of_rebalance("NoSuchReason") == ""
