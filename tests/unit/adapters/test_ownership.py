"""Ownerships in ConfigMaps, of one part and of many: every crash, conflict and unknown outcome. The API server is played."""

from __future__ import annotations

import base64
import contextlib
import copy
import gzip
import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi
from shardherd.adapters.kubernetes.ownership import INDEX, KEY, LATE, ConfigMapOwnership
from shardherd.core.group import ownership as codec
from shardherd.core.model.errors import OwnershipFormatError
from shardherd.core.model.nouns import GroupIdentity
from shardherd.ports import (
    OutcomeUnknownError,
    OwnershipConflictError,
    OwnershipGoneError,
    OwnershipUnavailableError,
    StoredOwnership,
)
from tests.contract.ownership import OwnershipContract
from tests.harness.config_maps import PlayedConfigMaps, nothing

Json = dict[str, Any]

GROUP = GroupIdentity("demo", "clicks", "uid-1")
CONFIG_MAPS = "/api/v1/namespaces/demo/configmaps"
HEAD = f"{CONFIG_MAPS}/clicks-state"

LIMIT = 2000
"""Bytes in one part: few, so that many cost little."""


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> PlayedConfigMaps:
    monkeypatch.setattr("shardherd.adapters.kubernetes.ownership.LIMIT", LIMIT)
    return PlayedConfigMaps()


@pytest.fixture
def clock() -> Time:
    return Time()


def store_on(server: PlayedConfigMaps, clock: Time) -> ConfigMapOwnership:
    return ConfigMapOwnership(cast(KubernetesApi, server), now=clock)


@pytest.fixture
def store(server: PlayedConfigMaps, clock: Time) -> ConfigMapOwnership:
    return store_on(server, clock)


def data(parts: int, seed: int = 1) -> bytes:
    """What takes so many parts."""
    return random.Random(seed).randbytes(round((parts - 0.5) * LIMIT))


def failing(method: str, which: str, error: Exception, times: int = 1) -> Callable[[str, str], None]:
    """Fails the next requests of this method to paths that end so."""
    left = [times]

    def fail(asked: str, path: str) -> None:
        if asked == method and path.endswith(which) and left[0]:
            left[0] -= 1
            raise error

    return fail


async def loaded(store: ConfigMapOwnership) -> StoredOwnership:
    found = await store.load(GROUP)
    assert found is not None
    return found


class TestPlayedOwnership(OwnershipContract):
    """With parts as large as they are elsewhere."""

    @pytest.fixture
    def store(self, clock: Time) -> ConfigMapOwnership:
        return store_on(PlayedConfigMaps(), clock)

    @pytest.fixture
    def group(self) -> GroupIdentity:
        return GROUP


# What it costs.


async def test_an_ordinary_write_is_one_request_and_one_object(store: ConfigMapOwnership, server: PlayedConfigMaps) -> None:
    first = await store.save(GROUP, b"first", None)
    second = await store.save(GROUP, b"second", first)
    await store.save(GROUP, data(1), second)
    await store.load(GROUP)

    assert server.requests == ["POST state", "PUT state", "PUT state", "GET state"]
    assert server.parts() == []
    assert server.index(HEAD) is None


async def test_after_the_first_write_in_parts_each_is_its_parts_and_the_head_and_takes_the_ones_before_away(
    store: ConfigMapOwnership, server: PlayedConfigMaps
) -> None:
    version = await store.save(GROUP, data(3, 1), await store.save(GROUP, b"small", None))
    server.requests.clear()

    await store.save(GROUP, data(3, 2), version)

    kinds = [request.split("-")[0] + request[-2:] for request in server.requests]
    assert kinds == [*(f"POST state-{n}" for n in range(3)), "PUT statete", *(f"DELETE state-{n}" for n in (2, 1, 0))]
    assert len(server.parts()) == 3


async def test_what_fits_again_is_one_object_again(store: ConfigMapOwnership, server: PlayedConfigMaps) -> None:
    version = await store.save(GROUP, data(3), None)
    version = await store.save(GROUP, b"small", version)
    assert server.parts() == []
    server.requests.clear()

    await store.save(GROUP, b"smaller", version)

    assert server.requests == ["PUT state"]
    assert server.index(HEAD) is None


# What others see.


async def test_another_coordinator_reads_what_is_in_parts_and_writes_over_it(
    store: ConfigMapOwnership, server: PlayedConfigMaps, clock: Time
) -> None:
    version = await store.save(GROUP, data(3, 1), None)
    rival = store_on(server, clock)

    assert await rival.load(GROUP) == StoredOwnership(data(3, 1), version)
    taken = await rival.save(GROUP, data(2, 2), version)

    with pytest.raises(OwnershipConflictError, match="clicks"):
        await store.save(GROUP, data(3, 3), version)
    assert await rival.load(GROUP) == await store.load(GROUP) == StoredOwnership(data(2, 2), taken)


async def test_a_version_that_knows_no_parts_refuses_the_group_by_name(
    store: ConfigMapOwnership, server: PlayedConfigMaps
) -> None:
    await store.save(GROUP, data(2), None)

    seen = gzip.decompress(base64.b64decode(server.objects[HEAD]["binaryData"][KEY]))

    with pytest.raises(OwnershipFormatError, match="has format 2, this version reads 1; run the version that wrote it"):
        codec.loads(seen)


async def test_every_part_is_owned_by_the_group_and_cannot_be_changed(
    store: ConfigMapOwnership, server: PlayedConfigMaps
) -> None:
    await store.save(GROUP, data(3), None)

    owners = {owner["uid"] for item in server.objects.values() for owner in item["metadata"]["ownerReferences"]}
    assert owners == {"uid-1"}
    assert [server.objects[path]["immutable"] for path in server.parts()] == [True] * 3


async def test_who_reads_while_others_are_written_gets_either(
    store: ConfigMapOwnership, server: PlayedConfigMaps, clock: Time
) -> None:
    version = await store.save(GROUP, data(2, 1), None)
    rival = store_on(server, clock)
    older = copy.deepcopy(server.objects)
    version = await store.save(GROUP, data(2, 2), version)
    newer = server.objects
    server.objects = {HEAD: older[HEAD]}

    def written(method: str, path: str) -> None:
        server.objects = newer

    server.after = written

    assert await rival.load(GROUP) == StoredOwnership(data(2, 2), version)


# A coordinator that ends, a server that refuses, or does not answer.


@pytest.mark.parametrize("ends_at", range(6))
@pytest.mark.parametrize("before", [1, 3], ids=["one object", "parts"])
async def test_wherever_a_coordinator_ends_the_next_one_finds_one_of_both_whole_andnothing_stays(
    server: PlayedConfigMaps, clock: Time, before: int, ends_at: int
) -> None:
    """It ends before its nth write."""
    version = await store_on(server, clock).save(GROUP, data(before, 1), None)
    first = store_on(server, clock)
    assert (await loaded(first)).version == version
    left = [ends_at]

    def end(method: str, path: str) -> None:
        if method != "GET":
            left[0] -= 1
        if left[0] < 0:
            raise ApiUnavailableError("it has ended")

    server.before = end
    with contextlib.suppress(OutcomeUnknownError, OwnershipUnavailableError):
        await first.save(GROUP, data(3, 2), version)
    server.before = nothing

    second = store_on(server, clock)
    found = await loaded(second)
    assert found.data in (data(before, 1), data(3, 2))
    clock.now += LATE
    await second.save(GROUP, b"small", (await loaded(second)).version)
    assert server.parts() == []


async def test_parts_that_a_late_request_makes_after_its_coordinator_ended_are_removed(
    store: ConfigMapOwnership, server: PlayedConfigMaps, clock: Time
) -> None:
    version = await store.save(GROUP, b"small", None)
    server.before = failing("POST", "-1", ApiUnavailableError("timed out"))
    with pytest.raises(OwnershipUnavailableError, match="timed out"):
        await store.save(GROUP, data(3), version)
    (written,) = server.parts()
    second = store_on(server, clock)
    version = await second.save(GROUP, b"taken", (await loaded(second)).version)

    server.change(written.removesuffix("0") + "1", {"metadata": {"name": "late"}})
    clock.now += LATE
    await second.save(GROUP, b"small", version)

    assert server.parts() == []


async def test_a_part_that_is_refused_changesnothing_and_leavesnothing_and_the_next_attempt_succeeds(
    store: ConfigMapOwnership, server: PlayedConfigMaps
) -> None:
    version = await store.save(GROUP, b"small", None)
    server.before = failing("POST", "-1", ApiError("exceeded quota", 403, "Forbidden"))

    with pytest.raises(OwnershipUnavailableError, match="exceeded quota"):
        await store.save(GROUP, data(3), version)

    assert server.parts() == []
    # The coordinator knows the same version as before; that it was announced is the adapter's matter.
    version = await store.save(GROUP, data(3), version)
    assert await store.load(GROUP) == StoredOwnership(data(3), version)
    assert len(server.parts()) == 3


async def test_refusals_without_end_leavenothing(store: ConfigMapOwnership, server: PlayedConfigMaps) -> None:
    version = await store.save(GROUP, data(2), None)
    server.before = failing("POST", "-1", ApiError("exceeded quota", 403, "Forbidden"), times=30)

    for seed in range(30):
        with pytest.raises(OwnershipUnavailableError, match="exceeded quota"):
            await store.save(GROUP, data(3, seed), version)

    assert len(server.parts()) == 2
    assert await store.load(GROUP) == StoredOwnership(data(2), (await loaded(store)).version)


async def test_no_more_parts_are_begun_than_can_be_removed(
    store: ConfigMapOwnership, server: PlayedConfigMaps, clock: Time
) -> None:
    version = await store.save(GROUP, b"small", None)
    server.before = failing("POST", "-1", ApiUnavailableError("timed out"), times=1000)
    for _ in range(40):
        with pytest.raises(OwnershipUnavailableError):
            await store.save(GROUP, data(2), version)
    assert len(server.parts()) == 16

    server.before = nothing
    with pytest.raises(OwnershipUnavailableError, match="that are not used cannot be removed"):
        await store.save(GROUP, data(2), version)
    clock.now += LATE
    version = await store.save(GROUP, data(2), version)

    assert len(server.parts()) == 2
    assert await store.load(GROUP) == StoredOwnership(data(2), version)


@pytest.mark.parametrize("error", [ApiUnavailableError("timed out"), ApiError("busy", 503, "Unavailable")])
@pytest.mark.parametrize("happened", [True, False])
async def test_an_unknown_outcome_is_read_back(
    store: ConfigMapOwnership, server: PlayedConfigMaps, clock: Time, error: Exception, happened: bool
) -> None:
    version = await store.save(GROUP, data(2, 1), None)
    fail = failing("PUT", "state", error)
    server.before, server.after = (nothing, fail) if happened else (fail, nothing)

    with pytest.raises(OutcomeUnknownError, match="clicks"):
        await store.save(GROUP, data(3, 2), version)

    found = await loaded(store)
    assert found.data == (data(3, 2) if happened else data(2, 1))
    clock.now += LATE
    version = await store.save(GROUP, data(2, 3), found.version)
    assert await store.load(GROUP) == StoredOwnership(data(2, 3), version)
    assert len(server.parts()) == 2


async def test_somebody_elses_annotation_is_a_conflict_that_is_read_back_and_written_over(
    store: ConfigMapOwnership, server: PlayedConfigMaps, clock: Time
) -> None:
    version = await store.save(GROUP, data(2, 1), None)
    server.change(HEAD, server.objects[HEAD])

    with pytest.raises(OwnershipConflictError, match="clicks"):
        await store.save(GROUP, data(2, 2), version)

    found = await loaded(store)
    assert found.data == data(2, 1)
    clock.now += LATE
    await store.save(GROUP, data(2, 2), found.version)
    assert len(server.parts()) == 2


async def test_parts_that_cannot_be_removed_are_removed_with_the_next_write(
    store: ConfigMapOwnership, server: PlayedConfigMaps
) -> None:
    version = await store.save(GROUP, data(2), None)
    server.before = failing("DELETE", "-1", ApiError("busy", 429, "TooManyRequests"))
    version = await store.save(GROUP, b"small", version)
    assert len(server.parts()) == 2

    version = await store.save(GROUP, b"smaller", version)

    assert server.parts() == []
    await store.save(GROUP, b"smallest", version)
    assert server.index(HEAD) is None


# What people do.


async def test_a_part_that_is_deleted_is_damage_and_named(
    store: ConfigMapOwnership, server: PlayedConfigMaps, clock: Time
) -> None:
    version = await store.save(GROUP, data(3), None)
    gone = server.parts()[1]
    del server.objects[gone]
    rival = store_on(server, clock)

    name = gone.removeprefix(f"{CONFIG_MAPS}/")
    why = f"ConfigMap {name}, one of the 3 parts of the ownership, was deleted or damaged"
    assert await rival.load(GROUP) == StoredOwnership(b"", version, f"the stored ownership is damaged: {why}")

    clock.now += LATE
    await rival.save(GROUP, b"rebuilt", version)
    assert server.parts() == []


@pytest.mark.parametrize("content", ["bm90IHdoYXQgd2FzIHdyaXR0ZW4=", "?", None])
async def test_a_part_that_was_put_there_by_hand_is_damage(
    store: ConfigMapOwnership, server: PlayedConfigMaps, content: str | None
) -> None:
    await store.save(GROUP, data(2), None)
    server.objects[server.parts()[1]]["binaryData"] = {"part": content}

    found = await loaded(store)

    assert found.data == b""
    assert found.damage.startswith("the stored ownership is damaged: ")


@pytest.mark.parametrize(
    "index",
    [
        *(None, "", "[]", "{}", "[" * 200_000, '{"generation": 3, "parts": 1, "sha256": "", "announced": []}'),
        *(f'{{"generation": "3", "parts": {parts}, "sha256": "", "announced": []}}' for parts in (-1, 10**30, 1e400)),
    ],
    ids=lambda index: str(index)[:40],
)
async def test_a_head_that_does_not_name_its_parts_any_more_is_damage(
    store: ConfigMapOwnership, server: PlayedConfigMaps, clock: Time, index: str | None
) -> None:
    version = await store.save(GROUP, data(2), None)
    server.objects[HEAD]["data"] = {} if index is None else {INDEX: index}

    found = await loaded(store_on(server, clock))

    assert found == StoredOwnership(
        b"", version, "the stored ownership is damaged: it is in parts, and parts.json does not say in which"
    )


async def test_a_part_that_is_deleted_under_its_leader_is_written_anew_with_the_next_write(
    store: ConfigMapOwnership, server: PlayedConfigMaps
) -> None:
    version = await store.save(GROUP, data(3, 1), None)
    del server.objects[server.parts()[0]]

    version = await store.save(GROUP, data(3, 2), version)

    assert await store.load(GROUP) == StoredOwnership(data(3, 2), version)
    assert len(server.parts()) == 3


async def test_a_head_that_is_deleted_under_its_leader_is_written_anew_and_its_parts_go(
    store: ConfigMapOwnership, server: PlayedConfigMaps
) -> None:
    version = await store.save(GROUP, data(3, 1), None)
    del server.objects[HEAD]

    with pytest.raises(OwnershipGoneError, match="clicks"):
        await store.save(GROUP, data(2, 2), version)
    version = await store.save(GROUP, data(2, 2), None)

    assert await store.load(GROUP) == StoredOwnership(data(2, 2), version)
    assert len(server.parts()) == 2
