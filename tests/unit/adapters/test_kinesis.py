"""The coordinator's look at a stream of Kinesis, which is played: shards and their parents, ends, ages, how often it asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from moto.kinesis import models

from shardherd.adapters.kinesis.access import Access
from shardherd.adapters.kinesis.connector import OF_AWS, KinesisConnector
from shardherd.adapters.kinesis.source import MOST, KinesisShardSource
from shardherd.adapters.kinesis.stream import KinesisStream
from shardherd.core.model.nouns import GroupIdentity, KinesisSource, ShardId, ShardInfo
from shardherd.ports import SourceUnavailableError
from shardherd.source.kinesis.client import AccessKeys, Kinesis, KinesisRefusedError, StreamAccess
from tests.harness.kinesis import REGION, PlayedKinesis, put, stream
from tests.harness.memory_positions import MemoryPositions
from tests.harness.memory_secrets import MemorySecrets

GROUP = GroupIdentity("demo", "orders", "uid-1")
MIDDLE = str(2**127)
ALL = 2**128 - 1


@pytest.fixture(scope="module")
def kinesis() -> Iterator[PlayedKinesis]:
    with PlayedKinesis() as service:
        yield service


@pytest.fixture(autouse=True)
def fresh(kinesis: PlayedKinesis) -> None:
    kinesis.played.reset()


@pytest.fixture
def secrets() -> MemorySecrets:
    secrets = MemorySecrets()
    secrets.data["demo", "aws"] = {"accessKeyId": b"id", "secretAccessKey": b"secret\n"}
    return secrets


@pytest.fixture
async def connector(secrets: MemorySecrets) -> AsyncIterator[KinesisConnector]:
    made = KinesisConnector(secrets, MemoryPositions())
    yield made
    await made.close()


def source_of(kinesis: PlayedKinesis, name: str, **more: Any) -> KinesisSource:
    return KinesisSource(name, REGION, kinesis.url, **{"secret": "aws", **more})


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def opened(kinesis: PlayedKinesis, clock: Time) -> Iterator[Callable[[str], KinesisShardSource]]:
    """Opens a stream for a group. Looks are as fresh as the clock says."""
    with ThreadPoolExecutor(4) as threads:

        def open_stream(name: str) -> KinesisShardSource:
            access = Access(MemorySecrets(), "demo", "", own_identity=True)
            client = Kinesis(StreamAccess(name, REGION, kinesis.url), client=kinesis.client)
            return KinesisShardSource(
                KinesisStream(client, access, threads, monotonic=clock), source_of(kinesis, name), _nothing
            )

        yield open_stream


async def _nothing() -> None:
    return None


def id_of(name: str, number: int) -> ShardId:
    return ShardId(f"{name}/shardId-{number:012d}")


async def shards(source: KinesisShardSource, *, ends: bool = False) -> dict[int, ShardInfo]:
    """What a look shows, by the numbers of the shards."""
    return {int(info.shard[-12:]): info for info in (await source.discover(ends=ends)).shards}


async def test_a_split_and_a_merge_show_closed_parents_with_their_ends_and_children_that_name_them(
    kinesis: PlayedKinesis, opened: Callable[[str], KinesisShardSource], clock: Time
) -> None:
    with stream(kinesis, "orders", 1) as client:
        source = opened("orders")
        before = await shards(source)
        assert {number: (info.shard, info.open, info.parents) for number, info in before.items()} == {
            0: (id_of("orders", 0), True, ())
        }
        assert before[0].begin == before[0].end

        client.split_shard(StreamName="orders", ShardToSplit="shardId-000000000000", NewStartingHashKey=MIDDLE)
        client.merge_shards(
            StreamName="orders", ShardToMerge="shardId-000000000001", AdjacentShardToMerge="shardId-000000000002"
        )
        clock.now += 1
        after = await shards(source)

    parents = {number: info.parents for number, info in after.items()}
    first, second, third = (id_of("orders", number) for number in range(3))
    assert parents == {0: (), 1: (first,), 2: (first,), 3: (second, third)}
    assert [number for number, info in after.items() if info.open] == [3]
    assert all(info.end > info.begin > 2**63 for number, info in after.items() if number != 3)
    assert {info.source_id for info in after.values()} == {before[0].source_id}


async def test_a_look_asks_kinesis_once_a_second_however_many_groups_ask(
    kinesis: PlayedKinesis, connector: KinesisConnector
) -> None:
    with stream(kinesis, "orders", 3):
        sources = [connector.source(GroupIdentity("demo", name, name), source_of(kinesis, "orders")) for name in ("a", "b")]
        begun = time.monotonic()
        for _ in range(20):
            for source in sources:
                assert len((await source.discover()).shards) == 3
        took = time.monotonic() - begun

    assert kinesis.played.calls["ListShards"] <= 1 + took
    for source in sources:
        await source.close()


async def test_an_open_shard_reaches_what_was_seen_and_its_end_is_found_where_it_is_asked_for(
    kinesis: PlayedKinesis, opened: Callable[[str], KinesisShardSource]
) -> None:
    with stream(kinesis, "orders", 1) as client:
        put(client, "orders", [("k", b"1"), ("k", b"2"), ("k", b"3")])
        numbers = kinesis.numbers("orders", "shardId-000000000000")
        source, shard = opened("orders"), id_of("orders", 0)
        begin = (await shards(source))[0].begin
        assert (await shards(source))[0].end == begin

        await source.written_at({shard: begin})
        assert (await shards(source))[0].end == numbers[0] + 1
        await source.written_at({shard: numbers[1] + 1})
        assert (await shards(source))[0].end == numbers[2] + 1

        other = opened("orders")
        assert (await shards(other, ends=True))[0].end == numbers[2] + 1
        assert await other.log_ends([shard, id_of("other", 0)]) == {shard: numbers[2] + 1}
        assert (await shards(other))[0].end == numbers[2] + 1


async def test_records_say_when_they_arrived_and_what_has_none_left_says_so(
    kinesis: PlayedKinesis, opened: Callable[[str], KinesisShardSource]
) -> None:
    with stream(kinesis, "orders", 2) as client:
        put(client, "orders", [("a", b"1"), ("a", b"2")], {"a": 0})
        kinesis.age("orders", "shardId-000000000000", lambda place: 100.0 - 50 * place)
        first, second = kinesis.numbers("orders", "shardId-000000000000")
        source, full, empty = opened("orders"), id_of("orders", 0), id_of("orders", 1)
        begins = {number: info.begin for number, info in (await shards(source)).items()}
        now = time.time()

        ages = {
            shard: at and round(now - at) for shard, at in (await source.written_at({full: first, empty: begins[1]})).items()
        }
        assert ages == {full: 100, empty: None}
        assert round(now - ((await source.written_at({full: first + 1}))[full] or 0)) == 50
        assert await source.written_at({full: second + 1}) == {full: None}
        assert await source.written_at({}) == {}
        assert await source.written_at({id_of("orders", 9): 0, ShardId("x/0"): 0}) == {}


async def test_a_look_at_a_position_shows_where_a_shard_begins_once_retention_has_caught_up(
    kinesis: PlayedKinesis, opened: Callable[[str], KinesisShardSource], clock: Time
) -> None:
    with stream(kinesis, "orders", 1) as client:
        put(client, "orders", [("k", text.encode()) for text in "abcd"])
        numbers = kinesis.numbers("orders", "shardId-000000000000")
        source, shard = opened("orders"), id_of("orders", 0)

        async def oldest(position: int) -> int:
            await source.written_at({shard: position})
            return (await shards(source))[0].oldest

        begin = (await shards(source))[0].begin
        kinesis.age("orders", "shardId-000000000000", lambda _: 23 * 3600.0)
        assert await oldest(numbers[0] + 1) == 0, "the record before it is there"
        kinesis.trim("orders", "shardId-000000000000", numbers[2])
        kinesis.age("orders", "shardId-000000000000", lambda _: 2 * 3600.0)
        assert await oldest(numbers[0] + 1) == 0, "it may only have been quiet"
        kinesis.age("orders", "shardId-000000000000", lambda _: 23 * 3600.0)
        assert await oldest(begin) == 0, "nothing was read yet"
        assert await oldest(numbers[0] + 1) == numbers[2]
    with stream(kinesis, "orders", 1):
        models.kinesis_backends["123456789012"][REGION].streams["orders"].creation_datetime += timedelta(seconds=60)
        clock.now += 1
        assert (await shards(source))[0].oldest == 0, "it was made anew"


async def test_positions_are_found_by_time_and_what_has_nothing_so_young_is_at_its_end(
    kinesis: PlayedKinesis, opened: Callable[[str], KinesisShardSource]
) -> None:
    with stream(kinesis, "orders", 2) as client:
        put(client, "orders", [("a", b"1"), ("a", b"2")], {"a": 0})
        kinesis.age("orders", "shardId-000000000000", lambda place: 100.0 - 50 * place)
        first, second = kinesis.numbers("orders", "shardId-000000000000")
        source, full, empty = opened("orders"), id_of("orders", 0), id_of("orders", 1)
        begin, now = (await shards(source))[1].begin, time.time()

        assert await source.positions_at(now - 120) == {full: first, empty: begin}
        assert await source.positions_at(now - 70) == {full: second, empty: begin}
        assert await source.positions_at(now - 20) == {full: second + 1, empty: begin}


async def test_a_look_at_positions_asks_of_so_many_shards_at_most(
    kinesis: PlayedKinesis, opened: Callable[[str], KinesisShardSource]
) -> None:
    with stream(kinesis, "orders", MOST + 5):
        source = opened("orders")
        wanted = {info.shard: info.begin for info in (await source.discover()).shards}
        answers = await source.written_at(wanted)

    assert answers == dict.fromkeys(list(wanted)[:MOST])
    assert kinesis.played.calls["GetRecords"] <= 3 * MOST


async def test_a_stream_that_was_made_anew_has_another_id(
    kinesis: PlayedKinesis, opened: Callable[[str], KinesisShardSource], clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = opened("orders")
    with stream(kinesis, "orders", 1):
        before = (await shards(source))[0].source_id
    with stream(kinesis, "orders", 1):
        made = models.kinesis_backends["123456789012"][REGION].streams["orders"]
        made.creation_datetime += timedelta(seconds=60)  # it is told in whole seconds
        clock.now += 1
        assert (await shards(source))[0].source_id != before


async def refusal(ask: Callable[[], Awaitable[object]]) -> str:
    with pytest.raises(SourceUnavailableError) as raised:
        await ask()
    return str(raised.value)


async def test_what_is_wrong_is_named_with_its_remedy(
    kinesis: PlayedKinesis, connector: KinesisConnector, secrets: MemorySecrets
) -> None:
    missing = connector.source(GROUP, source_of(kinesis, "missing"))
    assert "stream missing cannot be read in eu-central-1" in await refusal(missing.discover)

    nobody = connector.source(GROUP, KinesisSource("orders", REGION, "http://127.0.0.1:9", "aws"))
    assert "Kinesis does not answer list_shards of orders" in await refusal(nobody.discover)

    unnamed = connector.source(GROUP, source_of(kinesis, "orders", secret=""))
    assert "spec.source.kinesis names no access key" in await refusal(unnamed.discover)

    secrets.data["demo", "half"] = {"accessKeyId": b"id"}
    half = connector.source(GROUP, source_of(kinesis, "orders", secret="half"))
    assert "Secret 'half' in namespace 'demo' has no key 'secretAccessKey'" in await refusal(half.discover)


@pytest.mark.parametrize(
    ("endpoint", "shown"),
    [
        ("https://kinesis.eu-central-1.amazonaws.com", True),
        ("https://kinesis-fips.us-east-1.amazonaws.com:443/", True),
        ("https://vpce-0a1b-c2d3.kinesis.eu-central-1.vpce.amazonaws.com", True),
        ("https://kinesis.cn-north-1.amazonaws.com.cn", True),
        ("http://kinesis.eu-central-1.amazonaws.com", False),
        ("https://kinesis.eu-central-1.amazonaws.com.example.org", False),
        ("https://example.org/kinesis.eu-central-1.amazonaws.com", False),
        ("https://x@example.org", False),
        ("https://a1.execute-api.eu-central-1.amazonaws.com", False),
        ("https://vpce-0a1b.vpce-svc-0c2d.eu-central-1.vpce.amazonaws.com", False),
    ],
)
def test_the_operators_own_identity_is_shown_to_aws_only(endpoint: str, shown: bool) -> None:
    assert bool(OF_AWS.fullmatch(endpoint)) is shown


async def test_a_group_that_names_another_endpoint_needs_a_key_of_its_own(
    kinesis: PlayedKinesis, secrets: MemorySecrets
) -> None:
    connector = KinesisConnector(secrets, MemoryPositions(), own_identity=True)
    with stream(kinesis, "orders", 1):
        said = await refusal(connector.source(GROUP, source_of(kinesis, "orders", secret="")).discover)
        assert f"the operator shows its own identity only to AWS, over TLS, which {kinesis.url} is not" in said
        assert not kinesis.played.calls["ListShards"]
        assert len((await connector.source(GROUP, source_of(kinesis, "orders")).discover()).shards) == 1
    await connector.close()


async def test_a_secret_that_was_corrected_is_read_again(
    kinesis: PlayedKinesis, connector: KinesisConnector, secrets: MemorySecrets
) -> None:
    source = connector.source(GROUP, source_of(kinesis, "orders", secret="later"))
    await refusal(source.discover)
    secrets.data["demo", "later"] = {"accessKeyId": b"id", "secretAccessKey": b"secret"}

    with stream(kinesis, "orders", 1):
        assert len((await source.discover()).shards) == 1


async def test_a_secret_is_read_once_for_all_who_ask_at_once_and_again_after_a_minute_or_a_failure(
    secrets: MemorySecrets, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = secrets.read

    async def counted(namespace: str, name: str) -> Any:
        read.append(name)
        await asyncio.sleep(0)
        return await original(namespace, name)

    monkeypatch.setattr(secrets, "read", counted)
    access = Access(secrets, "demo", "aws", monotonic=clock)

    await asyncio.gather(*(access.ready(failing=False) for _ in range(10)))
    assert (read, access.keys()) == (["aws"], AccessKeys("id", "secret"))
    clock.now += 59.0
    await access.ready(failing=False)
    assert read == ["aws"]
    secrets.data["demo", "aws"] = {"accessKeyId": b"new", "secretAccessKey": b"secret", "sessionToken": b"token"}
    await access.ready(failing=True)
    assert (read, access.keys()) == (["aws"] * 2, AccessKeys("new", "secret", "token"))
    secrets.available = False
    clock.now += 61.0
    await access.ready(failing=False)
    assert (len(read), access.keys()) == (3, AccessKeys("new", "secret", "token"))


async def test_where_nothing_is_answered_no_more_is_asked(
    kinesis: PlayedKinesis, opened: Callable[[str], KinesisShardSource]
) -> None:
    with stream(kinesis, "orders", 12):
        source = opened("orders")
        wanted = {info.shard: info.begin for info in (await source.discover()).shards}
        kinesis.played.refusals = [("AccessDeniedException", "not authorized")] * 12
        with pytest.raises(SourceUnavailableError, match="Kinesis refuses get_records of orders"):
            await source.written_at(wanted)
        assert kinesis.played.calls["GetRecords"] == 4

        kinesis.played.calls.clear()
        kinesis.played.refusals = [("AccessDeniedException", "not authorized")]
        assert len(await source.written_at(wanted)) == 11


async def test_an_end_that_cannot_be_found_ends_the_search_for_all_others(
    kinesis: PlayedKinesis, opened: Callable[[str], KinesisShardSource]
) -> None:
    with stream(kinesis, "orders", 12):
        source = opened("orders")
        shards = [info.shard for info in (await source.discover()).shards]
        kinesis.played.refusals = [("AccessDeniedException", "not authorized")] * 12
        for ask in (lambda: source.log_ends(shards), lambda: source.positions_at(1.0), lambda: source.discover(ends=True)):
            before = kinesis.played.calls["GetRecords"]
            assert "Kinesis refuses get_records of orders" in await refusal(ask)
            assert kinesis.played.calls["GetRecords"] - before == 4
        kinesis.played.refusals = []


def test_a_secret_that_is_withdrawn_does_not_make_the_operator_go_on_as_itself() -> None:
    access = StreamAccess("orders", REGION, "http://127.0.0.1:9", lambda: None)
    with pytest.raises(KinesisRefusedError, match="the access key for orders may not be used any more"):
        Kinesis(access).call("list_shards", StreamName="orders")
