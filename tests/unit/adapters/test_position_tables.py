"""Positions that the source does not keep: their contract, who is fenced by whom, and what one write a second means."""

from __future__ import annotations

import asyncio
import base64
import gzip
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from shardherd.adapters.kinesis.positions import PositionTable, TableOffsetStore
from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi
from shardherd.adapters.kubernetes.positions import ConfigMapPositions
from shardherd.adapters.local.database import Database
from shardherd.adapters.local.positions import SqlitePositions
from shardherd.core.model.nouns import GroupIdentity, ShardId
from shardherd.ports import (
    CommitFencedError,
    OutcomeUnknownError,
    OwnershipUnavailableError,
    SourceUnavailableError,
)
from tests.contract.offsets import OffsetsContract, Open
from tests.harness.config_maps import PlayedConfigMaps, nothing
from tests.harness.memory_positions import MemoryPositions

GROUP = GroupIdentity("demo", "clicks", "uid-1")
PATH = "/api/v1/namespaces/demo/configmaps/clicks-positions"
FIRST, SECOND = ShardId("orders/shardId-000000000000"), ShardId("orders/shardId-000000000001")
SEQUENCE = 49590338271490256608559692538361571095921575989136588898


class TableContract(OffsetsContract):
    """A store that does not know which shards there are refuses those of another stream."""

    def unwritable(self, topic: str) -> ShardId:
        return ShardId(f"{topic}-2/0")

    @pytest.fixture
    def topic(self) -> str:
        return "orders"


class TestMemoryTable(TableContract):
    @pytest.fixture
    def open_store(self, topic: str) -> Open:
        table = MemoryPositions()
        return lambda: TableOffsetStore(table, GROUP, topic, interval=0.0)


class TestConfigMaps(TableContract):
    @pytest.fixture
    def open_store(self, topic: str) -> Open:
        server = PlayedConfigMaps()
        return lambda: TableOffsetStore(on(server), GROUP, topic, interval=0.0)


class TestSqlite(TableContract):
    @pytest.fixture
    def open_store(self, topic: str, tmp_path: Path) -> Iterator[Open]:
        databases = [Database(tmp_path / "state.db") for _ in range(2)]
        opened = itertools.cycle(databases)
        yield lambda: TableOffsetStore(SqlitePositions(next(opened)), GROUP, topic, interval=0.0)
        for each in databases:
            each.close()


def on(server: PlayedConfigMaps) -> ConfigMapPositions:
    return ConfigMapPositions(cast(KubernetesApi, server))


@pytest.fixture
def server() -> PlayedConfigMaps:
    return PlayedConfigMaps()


@pytest.fixture
def table() -> MemoryPositions:
    return MemoryPositions()


async def taken_over(table: PositionTable, interval: float = 0.0) -> TableOffsetStore:
    store = TableOffsetStore(table, GROUP, "orders", interval=interval)
    await store.take_over()
    return store


async def test_sequence_numbers_are_kept_with_all_of_their_digits(table: MemoryPositions) -> None:
    await (await taken_over(table)).commit({FIRST: SEQUENCE + 1, SECOND: 0}, {FIRST: "1 u 2 3 "})

    later = await taken_over(table)
    assert await later.read([FIRST, SECOND]) == {FIRST: SEQUENCE + 1, SECOND: 0}
    assert await later.notes([FIRST, SECOND]) == {FIRST: "1 u 2 3 "}


async def test_a_commit_is_one_request(server: PlayedConfigMaps) -> None:
    store = await taken_over(on(server))
    server.requests.clear()

    await store.commit({FIRST: 1}, {})
    await store.commit({SECOND: 2}, {})

    assert [request.split()[0] for request in server.requests] == ["PUT", "PUT"]


async def test_there_is_at_most_one_write_in_an_interval_whatever_asks_for_it(server: PlayedConfigMaps) -> None:
    loop = asyncio.get_running_loop()
    written: list[float] = []
    server.before = lambda method, _: written.append(loop.time()) if method != "GET" else None

    store = await taken_over(on(server), interval=0.2)
    await store.commit({FIRST: 1}, {})
    await asyncio.gather(store.commit({FIRST: 2}, {}), store.commit({SECOND: 3}, {}))
    await store.forget([FIRST])
    await store.take_over()

    assert len(written) == 6
    assert all(later - earlier >= 0.2 for earlier, later in itertools.pairwise(written))


async def test_a_write_that_somebody_else_came_before_is_made_an_interval_later(server: PlayedConfigMaps) -> None:
    store, loop = await taken_over(on(server), interval=0.2), asyncio.get_running_loop()
    await store.commit({FIRST: 1}, {})
    written: list[float] = []
    edits = 2

    def edit(method: str, path: str) -> None:
        nonlocal edits
        if method == "PUT":
            written.append(loop.time())
            if edits:
                edits -= 1
                server.change(PATH, server.objects[PATH])

    server.before = edit
    await store.commit({FIRST: 2}, {})

    assert len(written) == 3
    assert all(later - earlier >= 0.2 for earlier, later in itertools.pairwise(written))


async def test_a_late_write_of_a_fenced_coordinator_is_refused_by_its_version(table: MemoryPositions) -> None:
    old = await taken_over(table)
    new = await taken_over(table)
    await new.commit({FIRST: 9}, {})

    # It has not read the table since, and writes over the version that it knows.
    with pytest.raises(CommitFencedError, match="another coordinator has taken over the positions of group demo/clicks"):
        await old.commit({FIRST: 5}, {})
    assert await new.read([FIRST]) == {FIRST: 9}


async def test_what_somebody_else_changed_in_the_object_keeps_nobody_from_committing(server: PlayedConfigMaps) -> None:
    store = await taken_over(on(server))
    await store.commit({FIRST: 1}, {})
    edited = await server.acall("GET", PATH)
    edited["metadata"]["labels"]["team"] = "orders"
    await server.acall("PUT", PATH, edited)

    await store.commit({SECOND: 2}, {})

    assert await store.read([FIRST, SECOND]) == {FIRST: 1, SECOND: 2}


async def test_who_took_over_before_the_table_was_deleted_is_fenced(server: PlayedConfigMaps) -> None:
    store = await taken_over(on(server))
    await store.commit({FIRST: 1}, {})
    await server.acall("DELETE", PATH)

    with pytest.raises(CommitFencedError):
        await store.commit({FIRST: 2}, {})
    await taken_over(on(server))
    with pytest.raises(CommitFencedError):
        await store.commit({FIRST: 2}, {})

    await store.take_over()
    assert await store.read([FIRST]) == {}


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OwnershipUnavailableError("cannot write"), SourceUnavailableError),
        (OutcomeUnknownError("may or may not be written"), OutcomeUnknownError),
    ],
)
async def test_after_a_write_that_failed_the_next_one_keeps_what_was_durable(
    table: MemoryPositions, error: Exception, raised: type[Exception]
) -> None:
    store = await taken_over(table)
    await store.commit({FIRST: 1}, {})
    table.faults.fail("save", error)

    with pytest.raises(raised):
        await store.commit({FIRST: 2}, {})

    await store.commit({SECOND: 3}, {})
    assert await store.read([FIRST, SECOND]) == {FIRST: 1, SECOND: 3}


async def test_a_write_that_happened_although_nobody_said_so_is_read_back(table: MemoryPositions) -> None:
    store = await taken_over(table)
    table.faults.fail("save", OutcomeUnknownError("no answer"), done=True)

    with pytest.raises(OutcomeUnknownError):
        await store.commit({FIRST: 2}, {})

    await store.take_over()
    assert await store.read([FIRST]) == {FIRST: 2}


@pytest.mark.parametrize("content", ["AAAA", base64.b64encode(gzip.compress(b"[" * 200_000)).decode()], ids=["bytes", "nested"])
async def test_damaged_positions_are_never_taken_for_none(server: PlayedConfigMaps, content: str) -> None:
    store = await taken_over(on(server))
    await store.commit({FIRST: 1}, {})
    damaged = await server.acall("GET", PATH)
    damaged["binaryData"] = {"positions.json.gz": content}
    await server.acall("PUT", PATH, damaged)

    for what in (store.take_over, lambda: store.read([FIRST])):
        with pytest.raises(
            SourceUnavailableError, match=r"the stored positions of group demo/clicks cannot be read: .*spec.reset"
        ):
            await what()


async def test_what_a_deleted_group_of_the_same_name_left_is_not_taken_over(server: PlayedConfigMaps) -> None:
    await (await taken_over(on(server))).commit({FIRST: 1}, {})
    other = TableOffsetStore(on(server), GroupIdentity("demo", "clicks", "uid-2"), "orders", interval=0.0)

    assert await other.read([FIRST]) == {}
    with pytest.raises(SourceUnavailableError, match="are written by others all the time"):
        await other.take_over()  # until Kubernetes has removed what is left


def refusing(error: Exception) -> Callable[[str, str], None]:
    def refuse(method: str, path: str) -> None:
        raise error

    return refuse


async def test_the_api_server_away_is_told_from_an_outcome_that_nobody_knows(server: PlayedConfigMaps) -> None:
    store = await taken_over(on(server))
    for error, raised in (
        (ApiUnavailableError("no answer"), OutcomeUnknownError),
        (ApiError("busy", 503, ""), OutcomeUnknownError),
        (ApiError("too large", 413, ""), SourceUnavailableError),
    ):
        await store.read([FIRST])
        server.before = refusing(error)
        with pytest.raises((raised, SourceUnavailableError)):
            await store.read([FIRST])
        server.before = nothing
        await store.commit({FIRST: 1}, {})
        server.before = refusing(error)
        with pytest.raises(raised):
            await store.commit({FIRST: 2}, {})
        server.before = nothing
        assert await store.read([FIRST]) == {FIRST: 1}
        await store.take_over()


async def test_positions_on_one_machine_go_with_their_group_and_a_folder_of_an_earlier_version_gets_the_table(
    tmp_path: Path,
) -> None:
    database = Database(tmp_path / "state.db")
    table = SqlitePositions(database)
    await (await taken_over(table)).commit({FIRST: SEQUENCE}, {})
    assert await TableOffsetStore(SqlitePositions(database), GROUP, "orders").read([FIRST]) == {FIRST: SEQUENCE}

    table.forget(GROUP.uid)

    assert await TableOffsetStore(table, GROUP, "orders").read([FIRST]) == {}
    database.close()


async def test_ten_thousand_shards_fit_into_one_object(server: PlayedConfigMaps) -> None:
    shards = [ShardId(f"orders/shardId-{number:012d}") for number in range(10_000)]
    source_id = "arn:aws:kinesis:eu-central-1:123456789012:stream/orders@1700000000"
    notes = {shard: f"1 6a1f2c34-0000-4000-8000-000000000001 17 {number} {source_id}" for number, shard in enumerate(shards)}
    digits = random.Random(1)
    positions = {shard: SEQUENCE + digits.randrange(10**50) for shard in shards}
    store = await taken_over(on(server))

    await store.commit(positions, notes)

    assert await store.read(shards) == positions
    assert server.bytes < 700_000
