"""Consumers against a whole coordinator over HTTP, on the twins: asynchronous, synchronous, and as the program of a pod."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import signal
import time
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import aiohttp
import pytest

from shardherd.client import AsyncConsumer, AsyncConsumerClient, Consumer, ConsumerClient, pod
from shardherd.client.pod import consumer_of_pod
from shardherd.core.model.errors import ConsumerStoppedError, FencedEpochError, InvalidRequestError, UnknownShardError
from shardherd.core.model.nouns import ConsumerId, Incarnation, ShardId
from shardherd.ports import Caller
from tests.harness.slow_callers import outlast
from tests.unit.coordinator.conftest import rig
from tests.unit.coordinator.rig import IDENTITY, spec_of
from tests.unit.coordinator.test_api import ADMIN, Service, service

__all__ = ["rig", "service"]

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.fixture
async def serving(service: Service) -> Service:
    """The group demo/clicks with four shards, and tokens for the pods clicks-0 and clicks-1 and for an admin."""
    for ordinal in (0, 1):
        caller = Caller("demo", "default", f"clicks-{ordinal}", f"uid-{ordinal}", "clicks", group_uid=IDENTITY.uid)
        service.rig.tokens.callers[f"token-{ordinal}"] = caller
    service.rig.tokens.callers["admin"] = ADMIN
    service.rig.tokens.rights |= {(ADMIN.user, verb, "demo", "clicks") for verb in ("get", "update")}
    service.server.coordination.apply(spec_of(heartbeat_interval=0.1, initial_assignment_delay=0.0))
    await service.server.lead()
    await service.settled()
    return service


def checkpoints(service: Service) -> dict[str, int | None]:
    return {row.shard: row.checkpoint for row in service.server.coordination.views()[IDENTITY].shards}


async def test_two_consumers_share_the_shards_and_each_goes_on_where_the_other_stopped(serving: Service) -> None:
    async with (
        AsyncConsumerClient(serving.url, "demo", "clicks", lambda: "token-0") as first_client,
        AsyncConsumerClient(serving.url, "demo", "clicks", lambda: "token-1") as second_client,
        AsyncConsumer(first_client, ConsumerId("clicks-0"), Incarnation("uid-0", 1), group_uid=IDENTITY.uid) as first,
    ):
        for _ in range(4):
            async with first.take() as shard:
                await shard.save_checkpoint(10, now=True)
        async with AsyncConsumer(
            second_client, ConsumerId("clicks-1"), Incarnation("uid-1", 1), group_uid=IDENTITY.uid
        ) as second:
            await serving.rig.becomes(lambda: (len(first.held()), len(second.held())) == (2, 2))
            async with second.take() as shard:
                assert shard.position == 10
                await shard.save_checkpoint(20, now=False)
        await serving.rig.becomes(lambda: len(first.held()) == 4)
        assert sorted(value or 0 for value in checkpoints(serving).values()) == [10, 10, 10, 20]


async def test_the_raw_calls_read_one_checkpoint_all_of_them_and_force_one(serving: Service) -> None:
    async with AsyncConsumerClient(serving.url, "demo", "clicks", lambda: "admin") as client:
        await serving.rig.becomes(lambda: set(checkpoints(serving).values()) == {0})
        assert await client.force_checkpoint(ShardId("t/1"), 7) == ""
        assert (await client.shard(ShardId("t/1"))).checkpoint == 7
        assert [row.checkpoint for row in await client.shards()] == [0, 7, 0, 0]
        with pytest.raises(UnknownShardError):
            await client.shard(ShardId("t/9"))


def read_synchronously(url: str) -> list[tuple[str, int]]:
    """What a program without an event loop does."""
    taken: list[tuple[str, int]] = []
    with (
        ConsumerClient(url, "demo", "clicks", lambda: "token-0") as client,
        ConsumerClient(url, "demo", "clicks", lambda: "admin") as admin,
        Consumer(client, ConsumerId("clicks-0"), Incarnation("uid-0", 1), group_uid=IDENTITY.uid) as consumer,
    ):
        for _ in range(4):
            with consumer.take() as shard:
                taken.append((shard.name, shard.position))
                shard.save_checkpoint(5, now=True)
        with consumer.take() as shard:
            assert not shard.wanted
            assert admin.force_checkpoint(shard.name, 3) == ""
            with pytest.raises(FencedEpochError):
                shard.save_checkpoint(9, now=True)
        assert admin.shard(ShardId("t/0")).checkpoint == 3
        assert len(admin.shards()) == 4
        assert consumer.drain(5)
        assert consumer.stopped == "this consumer has left the group"
        assert consumer.held() == ()
        with pytest.raises(ConsumerStoppedError), consumer.take():
            raise AssertionError("nothing may be taken any more")
    return taken


async def test_the_same_without_an_event_loop(serving: Service) -> None:
    taken = await asyncio.to_thread(read_synchronously, serving.url)

    assert taken == [("t/0", 0), ("t/1", 0), ("t/2", 0), ("t/3", 0)]
    assert serving.server.coordination.views()[IDENTITY].consumers == ()


def environment(service: Service, token: Path) -> dict[str, str]:
    return {
        "SHARDHERD_COORDINATOR_URL": service.url,
        "SHARDHERD_NAMESPACE": "demo",
        "SHARDHERD_GROUP": "clicks",
        "SHARDHERD_GROUP_UID": IDENTITY.uid,
        "SHARDHERD_CONSUMER": "clicks-0",
        "SHARDHERD_POD_UID": "uid-0",
        "SHARDHERD_START": "1",
        "SHARDHERD_TOKEN_FILE": str(token),
    }


@pytest.fixture
def token(tmp_path: Path) -> Path:
    token = tmp_path / "token"
    token.write_text("token-0\n")
    return token


async def test_the_program_of_a_pod_is_ready_reads_and_drains_at_sigterm(
    serving: Service, token: Path, unused_tcp_port: int
) -> None:
    ports = {"SHARDHERD_METRICS_PORT": str(unused_tcp_port), "SHARDHERD_DRAIN_TIMEOUT_MS": "5000"}
    async with consumer_of_pod(environment(serving, token) | ports) as consumer:
        async with consumer.take() as shard:
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{unused_tcp_port}/readyz") as probed:
                assert probed.status == 200
            os.kill(os.getpid(), signal.SIGTERM)
            await serving.rig.becomes(lambda: consumer.draining)
            await shard.save_checkpoint(12, now=False)
        with pytest.raises(ConsumerStoppedError):
            await consumer.take().__aenter__()
    assert checkpoints(serving)[shard.name] == 12
    assert serving.server.coordination.views()[IDENTITY].consumers == ()


async def test_who_sends_the_head_of_a_probe_byte_by_byte_loses_the_connection(
    serving: Service, token: Path, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod, "HEAD_WITHIN", 0.2)
    async with consumer_of_pod(environment(serving, token) | {"SHARDHERD_METRICS_PORT": str(unused_tcp_port)}):
        slow = asyncio.to_thread(outlast, unused_tcp_port, 3, b"GET /readyz HTTP/1.1\r\nX-Slow: ")
        await asyncio.wait_for(slow, timeout=10)


async def test_a_second_sigterm_does_not_end_a_drain(serving: Service, token: Path) -> None:
    async with consumer_of_pod(environment(serving, token)) as consumer:

        async def read() -> None:
            async with consumer.take() as shard:
                await serving.rig.becomes(lambda: consumer.draining)
                await asyncio.sleep(0.2)  # the program is long at the end of its block
                assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "it would kill this process"
                os.kill(os.getpid(), signal.SIGTERM)
                await shard.save_checkpoint(7, now=False)

        reading = asyncio.create_task(read())
        await serving.rig.becomes(lambda: consumer.holdings.busy)
        os.kill(os.getpid(), signal.SIGTERM)
        await serving.rig.becomes(lambda: consumer.draining)
    await reading
    assert sorted(at or 0 for at in checkpoints(serving).values()) == [0, 0, 0, 7]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_of_a_process_that_the_program_has_forked_ends_that_process_alone(
    serving: Service, token: Path, number: int
) -> None:
    async with consumer_of_pod(environment(serving, token), signals=(signal.SIGTERM, signal.SIGINT)) as consumer:
        forked = await asyncio.to_thread(_forked)
        os.kill(forked.pid or 0, number)
        await asyncio.to_thread(forked.join, 10)
        assert (forked.exitcode, consumer.draining) == (-number if number == signal.SIGTERM else 1, False)


def _forked() -> BaseProcess:
    """A process as `multiprocessing.Pool` has several, which sleeps by now."""
    context = multiprocessing.get_context("fork")
    begun = context.Event()
    process = context.Process(target=_sleep, args=(begun,), daemon=True)
    process.start()
    assert begun.wait(10)
    return process


def _sleep(begun: Event) -> None:
    begun.set()
    time.sleep(60)


async def test_a_program_outside_of_a_pod_is_told_what_is_not_set() -> None:
    with pytest.raises(InvalidRequestError, match="not set in the environment: SHARDHERD_COORDINATOR_URL, SHARDHERD_NAMESPACE"):
        await consumer_of_pod({}).__aenter__()


@pytest.mark.parametrize(
    ("name", "text", "must"),
    [
        ("COORDINATOR_URL", "operator:8080", "must be as https://host:port, or http://host:port, not 'operator:8080'"),
        ("COORDINATOR_URL", "http://a:99999", "must be as https://host:port, or http://host:port, not 'http://a:99999'"),
        ("START", "one", "must be a whole number, 1 or more, not 'one'"),
        ("START", "0", "must be a whole number, 1 or more, not '0'"),
        ("START", "9" * 5000, f"must be a whole number, 1 or more, not '{'9' * 80}'"),
        ("CAPACITY", "1.5", "must be a whole number, 1 or more, not '1.5'"),
        ("CAPACITY", "0", "must be a whole number, 1 or more, not '0'"),
        ("COORDINATOR_LOSS_LIMIT_MS", "5m", "must be a whole number, from 0 to 1000000000000, not '5m'"),
        ("DRAIN_TIMEOUT_MS", "-1", "must be a whole number, from 0 to 1000000000000, not '-1'"),
        ("DRAIN_TIMEOUT_MS", "9" * 400, f"must be a whole number, from 0 to 1000000000000, not '{'9' * 80}'"),
        ("METRICS_PORT", "http", "must be a whole number, from 0 to 65535, not 'http'"),
        ("METRICS_PORT", "70000", "must be a whole number, from 0 to 65535, not '70000'"),
    ],
)
async def test_a_variable_that_is_wrong_is_named_before_the_program_joins(
    serving: Service, token: Path, name: str, text: str, must: str
) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(f"SHARDHERD_{name} {must}")):
        await consumer_of_pod(environment(serving, token) | {f"SHARDHERD_{name}": text}).__aenter__()
    assert serving.server.coordination.views()[IDENTITY].consumers == ()


async def test_the_example_of_the_documentation_works(serving: Service, token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(# consumer\.py.*?)```", (DOCS / "protocol.md").read_text(), re.DOTALL)
    for partition in range(4):
        serving.kafka.append("t", partition, 9)
    offsets = [1, 4, 8]  # what compaction has left
    for name, value in environment(serving, token).items():
        monkeypatch.setenv(name, value)
    read: list[tuple[str, int]] = []

    async def fetch(shard: str, position: int) -> list[tuple[int, str]]:
        await asyncio.sleep(0.001)
        return [(offset, f"{shard}@{offset}") for offset in offsets if offset >= position][:2]

    async def handle(shard: str, record: str) -> None:
        read.append((shard, int(record.rpartition("@")[2])))
        if len(read) == 12:
            os.kill(os.getpid(), signal.SIGTERM)

    names = {"fetch": fetch, "handle": handle, "__name__": "example"}
    exec(compile(example, "consumer.py", "exec"), names)
    await asyncio.wait_for(names["main"](), 30)  # type: ignore[operator]

    assert sorted(read) == [(f"t/{partition}", offset) for partition in range(4) for offset in offsets]
    assert set(checkpoints(serving).values()) == {9}
