"""What a browser is told of groups, and that the page reads exactly that."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from shardherd.core.model.gauges import Gauge, GaugeKind, Stage
from shardherd.core.model.nouns import Condition, ConsumerId, ShardState
from shardherd.page import document
from shardherd.page.document import FORMAT
from tests.harness.played_page import WALL, Pages, group, moved, shard, view
from tests.unit.inspect.observations import SINCE

STATIC = Path(document.__file__).parent / "static"
FIELDS = (STATIC / "fields.js").read_text()


def names(kind: str) -> list[str]:
    """What fields.js says that an object of this kind has."""
    listed = re.search(rf"\b{kind}: \[(.*?)\]", FIELDS, re.DOTALL) or re.search(rf"const {kind} = \[(.*?)\]", FIELDS, re.DOTALL)
    assert listed is not None, kind
    row = names("ROW") if "...ROW" in listed[1] else []
    return row + re.findall(r'"(\w+)"', listed[1])


def made(pages: Pages, wanted: tuple[str, str] | None = ("shop", "clicks")) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pages.made(wanted))
    return found


@pytest.fixture
def pages() -> Pages:
    """A group of which everything is known."""
    found = Pages()
    resource, picture = group(3, 2, lag=10, status={"lastRebalance": {"time": SINCE, "reason": "ConsumerJoined", "moved": 2}})
    identity = found.put(
        resource,
        view(
            [ConsumerId("clicks-0"), ConsumerId("clicks-1")],
            (*picture.shards[:2], shard(2, None, lag=4)),
            withheld=(Condition("Paused", "spec.paused is true"),),
        ),
    )
    found.history.sample(found.views)
    found.history.rebalanced(identity, "ConsumerJoined", 2)
    return found


def test_the_document_has_exactly_the_fields_that_the_page_reads(pages: Pages) -> None:
    found = made(pages)
    chosen = found["group"]
    kinds = {
        "conditions": "condition",
        "withheld": "withheld",
        "diagnosis": "answer",
        "states": "state",
        "consumers": "consumer",
        "rebalances": "rebalance",
    }
    assert list(found) == names("document")
    assert list(found["groups"][0]) == names("ROW")
    assert list(chosen) == names("group")
    assert list(chosen["lag"]) == names("lag")
    for name, kind in kinds.items():
        assert list(chosen[name][0]) == names(kind), name
    assert len(chosen["shards"][0]) == len(names("shard"))
    assert f"FORMAT = {FORMAT};" in FIELDS
    rest = "".join(path.read_text() for path in STATIC.glob("*.js"))
    every = {name for kind in ("document", "group", "lag", "shard", *kinds.values()) for name in names(kind)}
    assert {name for name in every if not re.search(rf"\.{name}\b|\b{{? ?{name} ?}}? = found", rest)} == set()


def test_a_group_in_full_is_the_status_the_view_and_the_past(pages: Pages) -> None:
    chosen = made(pages)["group"]
    assert (chosen["namespace"], chosen["name"], chosen["ready"], chosen["reason"]) == ("shop", "clicks", "True", "Consuming")
    assert (chosen["lagRecords"], chosen["lagSeconds"], chosen["produced"], chosen["consumed"]) == (24, 3, 10, 20)
    assert chosen["shards"] == [
        ["clicks/0", "ALREADY_ALLOC", "clicks-0", None, 1, 100, 110, 10, "Unknown", 65, None],
        ["clicks/1", "ALREADY_ALLOC", "clicks-1", None, 2, 100, 110, 10, "Unknown", 65, None],
        [
            "clicks/2",
            "NOT_ALLOC",
            None,
            None,
            3,
            100,
            104,
            4,
            "Unknown",
            65,
            "NoHolder: nothing is granted: spec.paused is true",
        ],
    ]
    assert [(each["state"], each["shards"]) for each in chosen["states"]] == [
        ("ALREADY_ALLOC", 2), ("TRANSFER", 0), ("NOT_ALLOC", 1), ("WAIT", 0), ("OVER", 0),
    ]  # fmt: skip
    assert chosen["consumers"][1] == {
        "name": "clicks-1", "ready": True, "draining": False, "cordoned": False, "phase": "reading", "phaseSeconds": 4,
        "heartbeatSeconds": 1, "shards": 1, "zone": "eu-1a", "stage": "below", "fullest": None,
    }  # fmt: skip
    assert chosen["withheld"] == [{"reason": "Paused", "message": "spec.paused is true"}]
    assert chosen["diagnosis"][1] == {
        "question": "Why this assignment (assignor Sticky)?",
        "reason": "Balanced",
        "message": "2 consumers with 2 shards each at most.",
        "means": "the shards are spread as they should be",
        "remedy": "",
        "source": f"condition Balanced, since {SINCE}",
    }
    assert chosen["lag"] == {"interval": 15.0, "points": [[WALL, 24, 3]]}
    joined = "a consumer came, or is ready now, and is given its share"
    assert chosen["rebalances"] == [{"time": WALL, "reason": "ConsumerJoined", "moved": 2, "means": joined}]
    assert (chosen["rebalancesForgotten"], chosen["since"], chosen["loaded"], chosen["paused"]) == (0, WALL, True, False)


def test_a_consumer_shows_its_stage_and_the_fullest_of_what_it_reports(pages: Pages) -> None:
    _, picture = group(2, 1)
    gauges = (
        Gauge(GaugeKind.DISK, "/data", 940, 1000),
        Gauge(GaugeKind.MEMORY, "memory", 3, 10),
        Gauge(GaugeKind.OWN, "own", 1, 2),
    )
    full = structs.replace(picture.consumers[0], stage=Stage.HIGH, gauges=gauges)
    pages.put(pages.resources["shop", "clicks"], structs.replace(picture, consumers=(full,)))
    pages.passes()
    (found,) = made(pages)["group"]["consumers"]
    assert (found["stage"], found["fullest"]) == ("high", "disk /data 94.0% full")


def test_a_group_that_is_not_loaded_is_what_its_status_says(pages: Pages) -> None:
    pages.views.clear()
    pages.passes()
    chosen = made(pages)["group"]
    assert (chosen["loaded"], chosen["shards"], chosen["consumers"], chosen["lagRecords"]) == (False, [], [], 70)
    assert chosen["states"][0]["shards"] == 3


def test_a_new_group_has_nothing_but_its_name(pages: Pages) -> None:
    pages.put({"metadata": {"namespace": "shop", "name": "new"}, "spec": {}})
    row = next(each for each in made(pages)["groups"] if each["name"] == "new")
    assert (row["ready"], row["message"], row["shardsTotal"], row["lagRecords"]) == (
        "Unknown",
        "nothing was looked at yet",
        None,
        None,
    )
    pages.passes()
    chosen = made(pages, ("shop", "new"))["group"]
    assert (chosen["conditions"], chosen["rebalances"], chosen["lag"]["points"]) == ([], [], [])


def test_a_group_that_is_not_there_is_said_to_be_missing(pages: Pages) -> None:
    found = made(pages, ("shop", "klicks"))
    assert (found["wanted"], found["group"]) == ("shop/klicks", None)
    assert made(pages, None)["wanted"] is None


def test_of_very_many_shards_those_are_shown_that_need_a_look(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "SHARDS", 3)
    monkeypatch.setattr(document, "CONSUMERS", 1)
    monkeypatch.setattr(document, "GROUPS", 1)
    resource, picture = group(6, 2)
    pages.put(
        resource,
        moved(
            picture,
            _5={"state": ShardState.NOT_ALLOC, "holder": None},
            _3={"lag_records": 9},
            _1={"lag_records": 8},
            _0={"present": False},
        ),
    )
    pages.put(*group(1, 1, name="views"))
    found = made(pages)
    chosen = found["group"]
    assert [row[0] for row in chosen["shards"]] == ["clicks/1", "clicks/3", "clicks/5"]
    assert (chosen["shardsOmitted"], chosen["consumersOmitted"], found["groupsOmitted"]) == (2, 1, 1)


SECRETS = ("hunter2", "kafka-credentials", "--password", "example/image", "broker.internal", "arn:aws")


def test_nothing_of_a_spec_is_told_that_may_be_secret(pages: Pages) -> None:
    resource, picture = group(1, 1)
    resource["metadata"] |= {"annotations": {"note": "hunter2"}, "managedFields": [{"manager": "hunter2"}]}
    resource["spec"] |= {
        "source": {
            "kafka": {"bootstrapServers": "broker.internal:9092", "security": {"secretRef": {"name": "kafka-credentials"}}}
        },
        "application": {"image": "example/image", "arguments": ["--password", "hunter2"], "sparkConf": {"role": "arn:aws:x"}},
    }
    pages.put(resource, picture)
    text = pages.made(("shop", "clicks")).decode()
    assert [secret for secret in SECRETS if secret in text] == []


def test_one_document_serves_all_who_ask_within_a_second(pages: Pages) -> None:
    first = pages.made(None)
    pages.drop()
    assert pages.made(None) == first
    pages.passes(1.0)
    assert json.loads(pages.made(None))["groups"] == []
    for number in range(100):
        assert json.loads(pages.made(("shop", f"g-{number}")))["group"] is None
