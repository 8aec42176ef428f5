"""Groups, shards, lag and positions, as they are printed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from shardherd.core.group.records import PositionCopies
from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import ShardId, ShardState, ShardVerdict
from shardherd.core.model.verdicts import Verdict
from shardherd.inspect import listing
from shardherd.inspect.answers import Answer
from shardherd.inspect.explaining import explain
from shardherd.inspect.observed import InspectError, Observed
from shardherd.inspect.printing import Output, console, show
from shardherd.inspect.rebalancing import rebalance
from tests.unit.inspect.observations import live, observed, pod, record, resource, seen

COPIES = (
    "Ends, lags, verdicts and times are the coordinator's to tell: name it by --api. "
    "Positions are copies, up to 10 minutes old."
)
SHARDS = ("shard", "state", "holder", "next", "epoch", "position", "end", "lag", "verdict", "since", "zone")


def said(number: int, verdict: Verdict) -> ShardVerdict:
    return ShardVerdict(ShardId(f"clicks/{number}"), verdict, Seconds(1_700_000_000.0 - 90.0))


def test_groups_have_a_row_each_and_more_of_it_where_that_is_wanted() -> None:
    new = resource("new")
    del new["status"]
    answer = listing.groups([resource(), new])

    assert answer.text() == (
        "GROUP        READY    SHARDS  ASSIGNED  CONSUMERS  LAG  WHY\n"
        "shop/clicks  True     4       4         2/2        70   2 consumers read 4 shards.\n"
        "shop/new     Unknown  -       -         0/-        -    nothing was looked at yet\n"
    )
    assert answer.text(wide=True).splitlines()[1] == (
        "shop/clicks  True     4       4         2/2        70   3      Shards  3      Consuming  2 consumers read 4 shards."
    )
    assert answer.data == [
        {
            "namespace": "shop",
            "name": "clicks",
            "ready": "True",
            "reason": "Consuming",
            "message": "2 consumers read 4 shards.",
            "mode": "Shards",
            "consumers": 2,
            "desired": 2,
            "shards": {"total": 4, "wait": 0, "notAlloc": 0, "alreadyAlloc": 4, "transfer": 0, "over": 0},
            "lag": {"records": 70, "seconds": 3, "producedPerSecond": 10, "consumedPerSecond": 20, "consumerPerSecond": 10},
            "epoch": 3,
        },
        {
            "namespace": "shop",
            "name": "new",
            "ready": "Unknown",
            "reason": None,
            "message": None,
            "mode": "Shards",
            "consumers": 0,
            "desired": None,
            "shards": None,
            "lag": None,
            "epoch": None,
        },
    ]


def test_no_groups_are_no_table() -> None:
    assert listing.groups([]).text() == "No groups.\n"


def test_a_group_is_its_conditions_its_consumers_and_what_happened_last() -> None:
    image = {"reason": "ErrImagePull", "message": "no such image"}
    pods = (pod("clicks-0", labels={"shardherd.dev/cordoned": "true"}), pod("clicks-1", ready=False, waiting=image))
    answer = listing.group(observed(pods=pods, unseen=("events: you may not",), events=()))

    assert answer.text() == (
        "GROUP        READY  SHARDS  ASSIGNED  CONSUMERS  LAG  WHY\n"
        "shop/clicks  True   4       4         2/2        70   2 consumers read 4 shards.\n"
        "\n"
        "CONDITION        STATUS  REASON           SINCE                 MESSAGE\n"
        "Ready            True    Consuming        2023-11-14T22:10:00Z  2 consumers read 4 shards.\n"
        "Reconciling      False   Settled          2023-11-14T22:10:00Z  2 consumers as declared.\n"
        "Stalled          False   NotStalled       2023-11-14T22:10:00Z  Nothing is in the way.\n"
        "SourceReachable  True    Discovered       2023-11-14T22:10:00Z  4 shards found.\n"
        "ConsumersReady   True    AllReady         2023-11-14T22:10:00Z  2 of 2 consumers are ready.\n"
        "Balanced         True    Balanced         2023-11-14T22:10:00Z  2 consumers with 2 shards each.\n"
        "ScalingActive    True    FollowingShards  2023-11-14T22:10:00Z  4 shards, 2 for each consumer.\n"
        "ScalingLimited   False   WithinLimits     2023-11-14T22:10:00Z  No limit is in the way.\n"
        "\n"
        "CONSUMER  READY  SHARDS  STATE     TROUBLE\n"
        "clicks-0  yes    2       cordoned  -\n"
        'clicks-1  no     2       starting  ImageUnavailable: Pod clicks-1 cannot get the image "example/clicks:1"'
        " (ErrImagePull)."
        " Correct spec.application.image, or spec.application.imagePullSecrets. The kubelet says: no such image\n"
        "\n"
        "No events.\n"
        "\n"
        "Not read: events: you may not\n"
    )


def test_a_consumer_without_a_pod_is_listed_with_what_it_holds() -> None:
    answer = listing.group(observed(pods=(pod("clicks-0"),)))
    assert "clicks-1  no     2       no pod seen  -\n" in answer.text()


def test_shards_are_listed_in_their_natural_order_as_they_are_stored() -> None:
    moving = (record(0, "clicks-0"), record(10, "clicks-0", to="clicks-1"), record(2, None), record(3, None, "OVER"))
    answer = listing.shards(observed(moving))

    assert answer.text() == (
        "SHARD      STATE          HOLDER    NEXT      EPOCH  POSITION  END  LAG  VERDICT  SINCE\n"
        "clicks/0   ALREADY_ALLOC  clicks-0  -         1      100       -    -    -        -\n"
        "clicks/2   NOT_ALLOC      -         -         3      102       -    -    -        -\n"
        "clicks/3   OVER           -         -         4      103       -    -    -        -\n"
        "clicks/10  TRANSFER       clicks-0  clicks-1  11     101       -    -    -        -\n"
        "\n"
        f"{COPIES}\n"
    )


def test_the_coordinator_adds_ends_lags_and_times() -> None:
    shards = seen(0, "clicks-0", lag=50, zone="a"), seen(1, None, age=30.0, present=False), seen(2, "clicks-1")
    there = live(*shards, verdict=Verdict.STALLED, verdicts=(said(0, Verdict.STALLED),))
    answer = listing.shards(observed(view=there))

    assert answer.text(wide=True) == (
        "SHARD     STATE             HOLDER    NEXT  EPOCH  POSITION  END  LAG  VERDICT  SINCE                 ZONE\n"
        "clicks/0  ALREADY_ALLOC     clicks-0  -     1      100       150  50   Stalled  2023-11-14T22:12:20Z  a\n"
        "clicks/1  NOT_ALLOC (gone)  -         -     2      100       100  0    -        2023-11-14T22:12:50Z  -\n"
        "clicks/2  ALREADY_ALLOC     clicks-1  -     3      100       100  0    OK       2023-11-14T22:12:20Z  -\n"
    )
    assert answer.data == {
        "group": "shop/clicks",
        "live": True,
        "shards": [
            dict(zip(SHARDS, row, strict=True))
            for row in (
                ("clicks/0", "ALREADY_ALLOC", "clicks-0", None, 1, 100, 150, 50, "Stalled", "2023-11-14T22:12:20Z", "a"),
                ("clicks/1", "NOT_ALLOC (gone)", None, None, 2, 100, 100, 0, None, "2023-11-14T22:12:50Z", None),
                ("clicks/2", "ALREADY_ALLOC", "clicks-1", None, 3, 100, 100, 0, "OK", "2023-11-14T22:12:20Z", None),
            )
        ],
        "notRead": [],
    }


def test_shards_of_one_state_or_of_one_consumer_are_picked() -> None:
    there = observed()

    def names(only: str) -> list[str]:
        return [line.split()[0] for line in listing.shards(there, only).text().splitlines()[1:-2]]

    assert names("clicks-1") == ["clicks/2", "clicks/10"]
    assert names(ShardState.ALREADY_ALLOC) == ["clicks/0", "clicks/1", "clicks/2", "clicks/10"]
    with pytest.raises(InspectError) as refused:
        listing.shards(there, "clicks-9")
    assert (str(refused.value), refused.value.code) == (
        "--only 'clicks-9' is no consumer of shop/clicks and no state of a shard: the states are WAIT, NOT_ALLOC,"
        " ALREADY_ALLOC, TRANSFER, OVER",
        4,
    )
    assert listing.shards(there, "OVER").text() == "No shard is in state OVER, or held by it.\n"


def test_a_group_whose_shards_are_not_known_says_why() -> None:
    unreachable = {"Ready": ("False", "SourceUnavailable", "no broker at kafka:9092")}
    assert listing.shards(observed(stored=None, conditions=unreachable)).text() == (
        "No shards are known yet. Ready: no broker at kafka:9092\n"
    )


def test_a_terminal_obeys_no_message_that_stands_in_the_place_of_a_table() -> None:
    odd = {"Ready": ("False", "Odd", "a\x1b]0;b\x07c\nd")}
    for answer in (listing.shards, listing.positions):
        assert answer(observed(stored=None, conditions=odd)).text() == "No shards are known yet. Ready: a ]0;b c d\n"


def test_lag_is_the_groups_by_its_status_and_that_of_consumers_and_shards_by_the_coordinator() -> None:
    there = live(seen(0, "clicks-0", lag=50), seen(1, "clicks-0", lag=5), seen(2, "clicks-1"), seen(3, None, lag=7))
    assert listing.lag(observed(view=there)).text() == (
        "GROUP        LAG  LAG-S  PRODUCED/S  CONSUMED/S  CONSUMER/S  READ IN  VERDICT\n"
        "shop/clicks  70   3      10          20          10          7s       OK\n"
        "\n"
        "CONSUMER  SHARDS  LAG  MOST OF A SHARD\n"
        "clicks-0  2       55   50\n"
        "clicks-1  1       0    0\n"
        "nobody    1       7    7\n"
        "\n"
        "SHARD     HOLDER    POSITION  END  LAG  VERDICT  SINCE\n"
        "clicks/0  clicks-0  100       150  50   OK       -\n"
        "clicks/3  -         100       107  7    OK       -\n"
        "clicks/1  clicks-0  100       105  5    OK       -\n"
    )


def test_shards_that_are_not_well_come_first_whatever_their_lag() -> None:
    shards = seen(0, "clicks-0", lag=50), seen(1, "clicks-0", lag=5), seen(2, "clicks-1"), seen(3, None, lag=7)
    verdicts = said(1, Verdict.STALLED), said(3, Verdict.STOPPED)
    answer = listing.lag(observed(view=live(*shards, verdict=Verdict.STALLED, verdicts=verdicts)))
    text = answer.text()
    assert "VERDICT  SHARDS\nStalled  1\nStopped  1\nOK       2\n" in text
    assert text.endswith(
        "SHARD     HOLDER    POSITION  END  LAG  VERDICT  SINCE\n"
        "clicks/1  clicks-0  100       105  5    Stalled  2023-11-14T22:11:50Z\n"
        "clicks/3  -         100       107  7    Stopped  2023-11-14T22:11:50Z\n"
        "clicks/0  clicks-0  100       150  50   OK       -\n"
    )
    assert isinstance(answer.data, dict)
    assert (answer.data["verdict"], answer.data["verdicts"]) == ("Stalled", {"Stalled": 1, "Stopped": 1, "OK": 2})


def test_before_the_coordinator_has_judged_nothing_is_said_to_be_well() -> None:
    there = live(seen(0, "clicks-0", lag=50), verdict=Verdict.UNKNOWN)
    assert listing.lag(observed(view=there)).text().endswith("clicks/0  clicks-0  100       150  50   Unknown  -\n")


@pytest.mark.parametrize(
    ("lag", "read_in"),
    [
        ({"records": 70}, "-"),
        ({"records": 0, "producedPerSecond": 9, "consumedPerSecond": 9}, "0s"),
        ({"records": 70, "producedPerSecond": 9, "consumedPerSecond": 9}, "never, at these rates"),
        ({"records": 71, "producedPerSecond": 0, "consumedPerSecond": 10}, "8s"),
    ],
)
def test_in_how_long_all_is_read_follows_from_the_rates(lag: dict[str, int], read_in: str) -> None:
    row = listing.lag(observed(status={"lag": lag})).text().splitlines()[1]
    assert re.split("  +", row)[6] == read_in


def test_positions_are_the_copies_where_the_coordinator_was_not_asked() -> None:
    answer = listing.positions(observed((record(0, "clicks-0"), record(1, "clicks-1"))))
    assert answer.text() == (
        f"SHARD     POSITION  BEGIN  END\nclicks/0  100       -      -\nclicks/1  101       -      -\n\n{COPIES}\n"
    )
    assert answer.data == {
        "group": "shop/clicks",
        "live": False,
        "offsets": {"clicks/0": 100, "clicks/1": 101},
        "shards": [
            {"shard": "clicks/0", "position": 100, "begin": None, "end": None},
            {"shard": "clicks/1", "position": 101, "begin": None, "end": None},
        ],
        "notRead": [],
    }


def test_a_program_reads_of_positions_what_the_table_has() -> None:
    first, never = seen(0, "clicks-0", lag=50), seen(1, None, checkpoint=None)
    data = listing.positions(observed(view=live(first, never))).data
    assert isinstance(data, dict)
    assert data["shards"] == [
        {"shard": "clicks/0", "position": 100, "begin": first.begin, "end": 150},
        {"shard": "clicks/1", "position": None, "begin": never.begin, "end": never.end},
    ]
    assert data["offsets"] == {"clicks/0": 100}


@pytest.mark.parametrize("answered", [listing.group, listing.shards, listing.lag, listing.positions, rebalance, explain])
def test_what_could_not_be_read_is_told_to_programs_as_to_people(answered: Callable[[Observed], Answer]) -> None:
    answer = answered(observed(unseen=("events: you may not",)))
    assert isinstance(answer.data, dict)
    assert (answer.data["notRead"], answer.text().splitlines()[-1]) == (
        ["events: you may not"],
        "Not read: events: you may not",
    )


def test_a_position_that_other_programs_would_round_is_a_string_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    sequence = 49590338271490256608559692538361571095921575989136588898
    of_stream = {"source": {"kinesis": {"streamName": "orders", "region": "eu-central-1"}}}
    known = observed(
        (record(0, "clicks-0"), record(1, "clicks-1")),
        spec=of_stream,
        copies=PositionCopies({ShardId("clicks/0"): sequence, ShardId("clicks/1"): 7}),
    )
    answer = listing.positions(known)
    show(answer, Output.JSON, console(colour=False))
    assert json.loads(capsys.readouterr().out)["offsets"] == {"clicks/0": str(sequence), "clicks/1": 7}
    assert str(sequence) in answer.text()
    assert (known.picture().source, known.picture().counts_records) == ("kinesis", False)
