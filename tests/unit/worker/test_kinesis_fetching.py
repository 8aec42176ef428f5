"""What a worker fetches of Kinesis, which is played: sequence numbers as positions, ends of shards, limits, what is gone."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shardherd.clock import boot_time
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.kinesis import deleted
from shardherd.source.kinesis.client import Kinesis, KinesisRefusedError, KinesisUnavailableError, StreamAccess
from shardherd.source.kinesis.listing import describe, list_shards
from shardherd.source.kinesis.ranges import RecordsLostError
from shardherd.worker import kinesis_fetching
from shardherd.worker.fetched import Part, batches
from shardherd.worker.kinesis_fetching import KinesisFetcher
from shardherd.worker.stream import Wanted
from tests.harness import kinesis as played
from tests.harness.kinesis import REGION, PlayedKinesis, open_shards, put, stream
from tests.unit.source.test_kinesis_aggregation import aggregated

FIRST = "shardId-000000000000"
A = ShardId(f"orders/{FIRST}")
WHOLE = 1 << 20


@pytest.fixture
def orders(kinesis: PlayedKinesis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(kinesis_fetching, "LOOK_INTERVAL", 0.0)
    monkeypatch.setattr(kinesis_fetching, "LIST_INTERVAL", 0.0)
    with stream(kinesis, "orders") as client:
        yield client


@contextmanager
def fetching(service: PlayedKinesis, *, fail: bool = True, clock: Callable[[], float] = time.time) -> Iterator[KinesisFetcher]:
    access = StreamAccess("orders", REGION, service.url)
    fetcher = KinesisFetcher(Kinesis(access, client=service.client), fail_on_data_loss=fail, clock=clock)
    try:
        yield fetcher
    finally:
        fetcher.close()


def begin_of(service: PlayedKinesis, shard: str = FIRST) -> Offset:
    return int(service.shard("orders", shard).begin)


def fetch(fetcher: KinesisFetcher, position: Offset, shard: ShardId = A, *, most: int = WHOLE) -> Part:
    """The next part of this shard, once there is one."""
    until = boot_time() + 10
    while boot_time() < until:
        for part in fetcher.fetch({shard: Wanted(position, most)}, behind=True):
            return part
    raise AssertionError(f"nothing came of {shard} at {position}")


def values(part: Part, most: int = 1000) -> list[list[bytes | None]]:
    return [[record.value for record in records] for records in batches(part, most)]


def write(client: Any, *texts: str) -> None:
    put(client, "orders", [("k", text.encode()) for text in texts])


def test_a_position_is_the_number_after_that_of_the_last_record_and_reading_goes_on_there(
    kinesis: PlayedKinesis, orders: Any
) -> None:
    write(orders, "a", "b", "c")
    numbers = kinesis.numbers("orders", FIRST)
    with fetching(kinesis) as fetcher:
        part = fetch(fetcher, begin_of(kinesis))
        assert (part.asked, part.next, part.end, part.behind) == (begin_of(kinesis), numbers[2] + 1, numbers[2] + 1, 0.0)
        assert min(numbers) > 2**63
        assert [record.offset for records in batches(part, 2) for record in records] == numbers
        assert [(each.position, each.next) for each in batches(part, 2)] == [
            (part.asked, numbers[1] + 1),
            (numbers[1] + 1, part.next),
        ]
        write(orders, "d")
        assert values(fetch(fetcher, part.next)) == [[b"d"]]
    with fetching(kinesis) as another:
        assert values(fetch(another, numbers[1] + 1)) == [[b"c", b"d"]]
        assert values(fetch(another, numbers[1])) == [[b"b", b"c", b"d"]]


def test_a_record_has_its_key_its_time_and_its_place_in_an_aggregated_one(kinesis: PlayedKinesis, orders: Any) -> None:
    put(orders, "orders", [("k", b"plain"), ("k", aggregated(("ann", b"1", None), ("bob", b"2", None)))])
    kinesis.age("orders", FIRST, lambda _: 100.0)
    with fetching(kinesis) as fetcher:
        (found,) = [list(records) for records in batches(fetch(fetcher, begin_of(kinesis)), 10)]
    plain, pair = kinesis.numbers("orders", FIRST)
    assert [(each.offset, each.key, each.value, each.sub) for each in found] == [
        (plain, b"k", b"plain", 0),
        (pair, b"ann", b"1", 0),
        (pair, b"bob", b"2", 1),
    ]
    age = kinesis.played.now() * 1000 - found[0].timestamp
    assert 99_000 < age < 130_000


def test_no_batch_ends_inside_an_aggregated_record(kinesis: PlayedKinesis, orders: Any) -> None:
    three = aggregated(("a", b"1", None), ("a", b"2", None), ("a", b"3", None))
    put(orders, "orders", [("k", b"0"), ("k", three), ("k", b"4"), ("k", b"5")])
    with fetching(kinesis) as fetcher:
        part = fetch(fetcher, begin_of(kinesis))
        zero, pack, four, five = kinesis.numbers("orders", FIRST)
        assert values(part, 1) == [[b"0"], [b"1", b"2", b"3"], [b"4"], [b"5"]]
        assert values(part, 2) == [[b"0"], [b"1", b"2", b"3"], [b"4", b"5"]]
        assert values(part, 4) == [[b"0", b"1", b"2", b"3"], [b"4", b"5"]]
        assert [each.next for each in batches(part, 2)] == [zero + 1, pack + 1, five + 1]
        assert [each.position for each in batches(part, 4)] == [part.asked, pack + 1]
    assert four < five


def test_a_closed_shard_is_read_to_the_end_that_its_listing_says_and_then_asked_for_no_more(
    kinesis: PlayedKinesis, orders: Any
) -> None:
    write(orders, "a", "b")
    orders.split_shard(StreamName="orders", ShardToSplit=FIRST, NewStartingHashKey=str(2**127))
    end = int(kinesis.shard("orders", FIRST).end) + 1
    with fetching(kinesis) as fetcher:
        part = fetch(fetcher, begin_of(kinesis))
        assert (values(part), part.next, part.end) == ([[b"a", b"b"]], end, end)
        before = kinesis.played.calls["GetRecords"]
        assert fetcher.fetch({A: Wanted(end, WHOLE)}, behind=False) == []
        assert kinesis.played.calls["GetRecords"] == before
    with fetching(kinesis) as another:
        rest = fetch(another, kinesis.numbers("orders", FIRST)[1] + 1)
        assert (values(rest), rest.next) == ([[]], end)


def test_a_shard_that_is_not_listed_as_closed_yet_has_no_end_until_it_is(
    kinesis: PlayedKinesis, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(orders, "a")
    with fetching(kinesis) as fetcher:
        fetcher.connect()
        open_still = list_shards(fetcher._kinesis)
        orders.split_shard(StreamName="orders", ShardToSplit=FIRST, NewStartingHashKey=str(2**127))
        monkeypatch.setattr(kinesis_fetching, "list_shards", lambda _: open_still)
        part = fetch(fetcher, begin_of(kinesis))
        number = kinesis.numbers("orders", FIRST)[0]
        assert (values(part), part.next, part.end > part.next) == ([[b"a"]], number + 1, True)
        assert fetch(fetcher, part.next).next == number + 1
        monkeypatch.setattr(kinesis_fetching, "list_shards", list_shards)
        assert fetch(fetcher, part.next).next == int(kinesis.shard("orders", FIRST).end) + 1


def test_a_part_says_whether_more_follows_and_how_many_seconds_of_it(kinesis: PlayedKinesis, orders: Any) -> None:
    write(orders, *"abc")
    kinesis.age("orders", FIRST, lambda _: 60.0)
    with fetching(kinesis) as fetcher:
        first = fetch(fetcher, begin_of(kinesis))
        assert (first.behind, first.end) == (0.0, first.next)
        write(orders, *"defg")
        kinesis.age("orders", FIRST, lambda _: 60.0)
        part = fetch(fetcher, first.next, most=2)
        assert (values(part), kinesis.played.asked_limits[-1], part.end) == ([[b"d"]], 1, part.next + 1)
        assert part.behind == pytest.approx(60.0, abs=20.0)


def test_the_limits_of_a_shard_hold_for_all_that_a_worker_asks(kinesis: PlayedKinesis, orders: Any) -> None:
    kinesis.played.limits = True
    write(orders, *(str(each) for each in range(30)))
    with fetching(kinesis) as fetcher:
        position, found = begin_of(kinesis), list[bytes | None]()
        while len(found) < 30:
            part = fetch(fetcher, position, most=1 if position > begin_of(kinesis) else WHOLE)
            found += [value for some in values(part) for value in some]
            position = part.next
    assert found == [str(each).encode() for each in range(30)]
    assert kinesis.played.calls["throttled"] == 0


def test_a_shard_that_others_ask_for_too_often_holds_up_no_other(kinesis: PlayedKinesis, orders: Any) -> None:
    orders.split_shard(StreamName="orders", ShardToSplit=FIRST, NewStartingHashKey=str(2**127))
    put(orders, "orders", [("low", b"1"), ("high", b"2")], {"low": 1, "high": 2**127 + 1})
    low, high = (ShardId(f"orders/shardId-00000000000{number}") for number in (1, 2))
    kinesis.played.refusals = [("ProvisionedThroughputExceededException", "Rate exceeded")]
    begins = {shard: begin_of(kinesis, shard.rpartition("/")[2]) for shard in (low, high)}
    wanted = {shard: Wanted(begin, WHOLE) for shard, begin in begins.items()}
    got: dict[ShardId, Part] = {}
    with fetching(kinesis) as fetcher:
        until = boot_time() + 10
        while len(got) < 2 and boot_time() < until:
            left = {shard: each for shard, each in wanted.items() if shard not in got}
            got |= {part.shard: part for part in fetcher.fetch(left, behind=True)}
    assert {shard: values(part) for shard, part in got.items()} == {low: [[b"1"]], high: [[b"2"]]}


def test_more_shards_than_requests_at_a_time_have_their_turns(
    kinesis: PlayedKinesis, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinesis_fetching, "AT_ONCE", 1)
    monkeypatch.setattr(played, "LARGEST_ANSWER", 5)  # for one record
    orders.update_shard_count(StreamName="orders", TargetShardCount=2, ScalingType="UNIFORM_SCALING")
    orders.update_shard_count(StreamName="orders", TargetShardCount=4, ScalingType="UNIFORM_SCALING")
    for quarter in range(4):
        put(orders, "orders", [("k", b"1")] * 20, {"k": quarter * 2**126 + 1})
    at = {ShardId(f"orders/{each}"): begin_of(kinesis, each) for each in open_shards(orders, "orders")}
    assert len(at) == 4
    turns: list[ShardId] = []
    with fetching(kinesis) as fetcher:
        while len(turns) < 16:
            for part in fetcher.fetch({shard: Wanted(position, WHOLE) for shard, position in at.items()}, behind=True):
                at[part.shard] = part.next
                turns.append(part.shard)
    assert [set(turns[begin : begin + 4]) for begin in range(0, 16, 4)] == [set(at)] * 4


def test_an_iterator_that_has_expired_goes_on_after_the_last_record(kinesis: PlayedKinesis, orders: Any) -> None:
    write(orders, "a")
    with fetching(kinesis) as fetcher:
        part = fetch(fetcher, begin_of(kinesis))
        kinesis.played.iterator_life = 0.0
        write(orders, "b")
        kinesis.played.iterator_life = 300.0
        assert values(fetch(fetcher, part.next)) == [[b"b"]]


def test_where_kinesis_takes_the_last_record_for_none_any_more_the_position_is_looked_for_anew(
    kinesis: PlayedKinesis, orders: Any
) -> None:
    write(orders, "a")
    with fetching(kinesis) as fetcher:
        part = fetch(fetcher, begin_of(kinesis))
        write(orders, "b")
        kinesis.played.refusals = [("InvalidArgumentException", "StartingSequenceNumber is invalid")]
        assert values(fetch(fetcher, part.next)) == [[b"b"]]


def quiet(service: PlayedKinesis, client: Any, hours: float) -> tuple[Offset, int]:
    """The last record that was read is deleted, and the next one came so many hours ago: the position, and its number."""
    write(client, "read", "next")
    read, following = service.numbers("orders", FIRST)
    service.trim("orders", FIRST, following)
    service.age("orders", FIRST, lambda _: hours * 3600)
    return read + 1, following


def test_a_shard_that_was_only_quiet_is_read_on_with_a_warning(
    kinesis: PlayedKinesis, orders: Any, caplog: pytest.LogCaptureFixture
) -> None:
    position, following = quiet(kinesis, orders, hours=2)
    with fetching(kinesis) as fetcher:
        assert values(fetch(fetcher, position)) == [[b"next"]]
    assert f"shard {A}: the record before position {position} is gone" in caplog.text
    assert f"up to {following}" in caplog.text


def test_records_that_retention_has_caught_up_with_are_an_error_that_names_them(kinesis: PlayedKinesis, orders: Any) -> None:
    position, following = quiet(kinesis, orders, hours=23)
    with (
        fetching(kinesis) as fetcher,
        pytest.raises(RecordsLostError, match=f"shard {A}: records from {position} up to {following} are lost.*for 24 h"),
    ):
        fetch(fetcher, position)


def test_or_a_warning_if_they_are_not_to_end_it(kinesis: PlayedKinesis, orders: Any, caplog: pytest.LogCaptureFixture) -> None:
    position, _ = quiet(kinesis, orders, hours=23)
    with fetching(kinesis, fail=False) as fetcher:
        assert values(fetch(fetcher, position)) == [[b"next"]]
    assert f"shard {A}: records from {position} up to" in caplog.text


def test_records_that_retention_deletes_just_before_they_are_read_are_an_error_too(
    kinesis: PlayedKinesis, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An iterator goes on behind them and does not say so."""
    monkeypatch.setattr(kinesis_fetching, "FIRST_LIMIT", 1)
    write(orders, "a", "lost", "left")
    kinesis.age("orders", FIRST, lambda _: 23 * 3600.0)
    first, _, left = kinesis.numbers("orders", FIRST)
    late = 0.0
    with fetching(kinesis, clock=lambda: time.time() + late) as fetcher:
        assert values(fetch(fetcher, begin_of(kinesis))) == [[b"a"]]
        kinesis.trim("orders", FIRST, left)
        late = 3600.0
        with pytest.raises(RecordsLostError, match=f"shard {A}: records from {first + 1} up to {left} are lost.*for 24 h"):
            fetch(fetcher, first + 1)


def test_where_nothing_is_deleted_a_shard_that_is_that_far_behind_is_read_like_others(
    kinesis: PlayedKinesis, orders: Any, caplog: pytest.LogCaptureFixture
) -> None:
    write(orders, *"abcdef")
    kinesis.age("orders", FIRST, lambda _: 24 * 3600.0)
    position, read = begin_of(kinesis), list[bytes | None]()
    with fetching(kinesis) as fetcher:
        while len(read) < 6:
            part = fetch(fetcher, position, most=1)
            read += [value for batch in values(part) for value in batch]
            position = part.next
    assert (read, caplog.records) == ([b"a", b"b", b"c", b"d", b"e", b"f"], [])


def test_nor_does_it_stand_still_where_an_answer_has_room_for_one_record(
    kinesis: PlayedKinesis, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record before the position is all that the first answer there has; the next one comes late."""
    monkeypatch.setattr(played, "LARGEST_ANSWER", 5)
    monkeypatch.setattr(deleted, "GRACE", 0.0)
    write(orders, *"abcd")
    kinesis.age("orders", FIRST, lambda _: 24 * 3600.0)
    position, read = kinesis.numbers("orders", FIRST)[0] + 1, list[bytes | None]()
    with fetching(kinesis) as fetcher:
        while len(read) < 3:
            part = fetch(fetcher, position)
            read += [value for batch in values(part) for value in batch]
            position = part.next
    assert read == [b"b", b"c", b"d"]


def test_a_quiet_shard_with_an_old_record_is_looked_at_as_often_as_others(
    kinesis: PlayedKinesis, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinesis_fetching, "LOOK_INTERVAL", 1.0)
    write(orders, "read")
    kinesis.age("orders", FIRST, lambda _: 24 * 3600.0)
    position, begun = kinesis.numbers("orders", FIRST)[0] + 1, boot_time()
    kinesis.played.calls.clear()
    with fetching(kinesis) as fetcher:
        while boot_time() - begun < 2.5:
            fetcher.fetch({A: Wanted(position, WHOLE)}, behind=False)
    assert kinesis.played.calls["GetShardIterator"] == 1
    assert 1 < kinesis.played.calls["GetRecords"] <= 1 + (boot_time() - begun)


def test_a_position_between_records_is_no_loss(kinesis: PlayedKinesis, orders: Any, caplog: pytest.LogCaptureFixture) -> None:
    write(orders, "a", "b")
    with fetching(kinesis) as fetcher:
        assert values(fetch(fetcher, kinesis.numbers("orders", FIRST)[0] + 5)) == [[b"b"]]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_shard_that_vanished_before_it_was_read_to_its_end_is_an_error(kinesis: PlayedKinesis, orders: Any) -> None:
    write(orders, "a", "b")
    with fetching(kinesis) as fetcher:
        fetcher.connect()
        kinesis.forget("orders", FIRST)
        with pytest.raises(RecordsLostError, match=f"shard {A}: the records from {begin_of_first(fetcher)} on are lost"):
            fetch(fetcher, begin_of_first(fetcher))


def begin_of_first(fetcher: KinesisFetcher) -> Offset:
    return fetcher._listed[FIRST].begin


def test_a_stream_that_is_not_there_is_refused(kinesis: PlayedKinesis) -> None:
    with fetching(kinesis) as fetcher, pytest.raises(KinesisRefusedError, match="orders"):
        fetcher.connect()


def test_a_stream_that_is_deleted_while_it_is_read_is_refused_and_not_lost(kinesis: PlayedKinesis) -> None:
    with fetching(kinesis) as fetcher:
        with stream(kinesis, "orders"):
            fetcher.connect()
        with pytest.raises(KinesisRefusedError, match="stream orders cannot be read"):
            fetch(fetcher, begin_of_first(fetcher))


def test_a_service_that_is_away_is_worth_another_try(kinesis: PlayedKinesis, orders: Any) -> None:
    write(orders, "a")
    kinesis.played.refusals = [("InternalFailure", "try again")]
    with fetching(kinesis) as fetcher:
        with pytest.raises(KinesisUnavailableError, match="try again"):
            fetch(fetcher, begin_of(kinesis))
        assert values(fetch(fetcher, begin_of(kinesis))) == [[b"a"]]


def failing_once(what: Callable[..., Any]) -> Callable[..., Any]:
    """The same, but that Kinesis does not answer the first time."""
    errors = [KinesisUnavailableError("not now")]

    def ask(kinesis: Kinesis) -> Any:
        if errors:
            raise errors.pop()
        return what(kinesis)

    return ask


def test_the_last_records_of_a_closed_shard_are_not_lost_where_its_end_cannot_be_asked_for_at_once(
    kinesis: PlayedKinesis, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(orders, "a")
    with fetching(kinesis) as fetcher:
        fetcher.connect()
        orders.split_shard(StreamName="orders", ShardToSplit=FIRST, NewStartingHashKey=str(2**127))
        monkeypatch.setattr(kinesis_fetching, "list_shards", failing_once(list_shards))
        with pytest.raises(KinesisUnavailableError, match="not now"):
            fetch(fetcher, begin_of(kinesis))
        part = fetch(fetcher, begin_of(kinesis))
    assert (values(part), part.next) == ([[b"a"]], int(kinesis.shard("orders", FIRST).end) + 1)


def test_nor_are_records_after_a_gap_where_the_retention_cannot_be_asked_for_at_once(
    kinesis: PlayedKinesis, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    position, _ = quiet(kinesis, orders, hours=2)
    monkeypatch.setattr(deleted, "describe", failing_once(describe))
    with fetching(kinesis) as fetcher:
        with pytest.raises(KinesisUnavailableError, match="not now"):
            fetch(fetcher, position)
        assert values(fetch(fetcher, position)) == [[b"next"]]


def test_what_is_under_way_when_a_call_ends_is_taken_up_by_the_next_one(
    kinesis: PlayedKinesis, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(orders, "a")
    monkeypatch.setattr(kinesis_fetching, "FETCH_WAIT", 0.0)
    with fetching(kinesis) as fetcher:
        assert values(fetch(fetcher, begin_of(kinesis))) == [[b"a"]]
    assert kinesis.played.calls["GetRecords"] == 1


def test_what_came_of_a_shard_that_nobody_wants_any_more_is_not_kept(kinesis: PlayedKinesis, orders: Any) -> None:
    write(orders, "a")
    late = 0.0
    access = StreamAccess("orders", REGION, kinesis.url)
    fetcher = KinesisFetcher(Kinesis(access, client=kinesis.client), fail_on_data_loss=True, now=lambda: boot_time() + late)
    part = fetch(fetcher, begin_of(kinesis))
    assert list(fetcher._readings) == [A]
    late = kinesis_fetching.FORGOTTEN_AFTER - 1
    fetcher.fetch({}, behind=False)
    assert list(fetcher._readings) == [A], "its iterator may still be used"
    late += 30
    fetcher.fetch({}, behind=False)
    assert list(fetcher._readings) == []
    write(orders, "b")
    assert values(fetch(fetcher, part.next)) == [[b"b"]]
    fetcher.close()
