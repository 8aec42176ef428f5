"""The ownership and the copies of positions in ConfigMaps: their contract, against an API server that is played."""

from __future__ import annotations

import base64
import copy
import gzip
import json
from collections.abc import Mapping
from typing import Any, cast

import pytest

from shardherd.adapters.kubernetes.api import MANAGER, ApiError, ApiUnavailableError, KubernetesApi
from shardherd.adapters.kubernetes.configmaps import body, foreign
from shardherd.adapters.kubernetes.ownership import ConfigMapOwnership
from shardherd.core.group.records import PositionCopies
from shardherd.core.model.nouns import GroupIdentity, ShardId
from shardherd.ports import OutcomeUnknownError, OwnershipConflictError, OwnershipUnavailableError, StoredCopies
from tests.contract.ownership import OwnershipContract

GROUP = GroupIdentity("demo", "clicks", "6a1f2c34-0000-4000-8000-000000000001")
COLLECTION = "/api/v1/namespaces/demo/configmaps"
FIRST, SECOND = f"{COLLECTION}/clicks-offsets-0", f"{COLLECTION}/clicks-offsets-1"
SHARD = ShardId("clicks/0")

Json = dict[str, Any]


class PlayedConfigMaps:
    """As much of an API server as ConfigMaps need: versions, preconditions, and who wrote which key last."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.requests: list[str] = []
        self.refuse: dict[str, Exception] = {}
        """By method and path."""
        self._version = 0

    def put(self, path: str, body: Json, manager: str = MANAGER) -> Json:
        before = self.objects.get(path, {})
        managers = dict(before.get("managers", {}))
        for key, data in body.get("binaryData", {}).items():
            if before.get("binaryData", {}).get(key) != data:
                managers[key] = manager
        self._version += 1
        found: Json = copy.deepcopy(body)
        found["managers"] = managers
        found["metadata"] |= {
            "resourceVersion": str(self._version),
            "managedFields": [
                {"manager": manager, "operation": "Update", "fieldsV1": {"f:binaryData": {".": {}, f"f:{key}": {}}}}
                for key, manager in managers.items()
            ],
        }
        self.objects[path] = found
        return found

    async def acall(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        self.requests.append(f"{method} {path.removeprefix(COLLECTION)}")
        if (error := self.refuse.pop(f"{method} {path}", None)) is not None:
            raise error
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            if path in self.objects:
                raise ApiError(f"{path} exists", 409, "AlreadyExists")
            return self.put(path, body)
        found = self.objects.get(path)
        if found is None:
            raise ApiError(f"there is no {path}", 404, "NotFound")
        wanted = (body or {}).get("metadata" if method == "PUT" else "preconditions", {}).get("resourceVersion")
        if wanted not in (None, found["metadata"]["resourceVersion"]):
            raise ApiError(f"{path} was changed", 409, "Conflict")
        if method == "PUT":
            return self.put(path, body)
        return self.objects.pop(path) if method == "DELETE" else copy.deepcopy(found)


@pytest.fixture
def server() -> PlayedConfigMaps:
    return PlayedConfigMaps()


@pytest.fixture
def store(server: PlayedConfigMaps) -> ConfigMapOwnership:
    return ConfigMapOwnership(cast("KubernetesApi", server))


@pytest.fixture
def group() -> GroupIdentity:
    return GROUP


class TestPlayedOwnership(OwnershipContract):
    """The contract itself."""


def said(server: PlayedConfigMaps, path: str) -> Mapping[str, Any]:
    """What a ConfigMap of copies holds."""
    data = server.objects[path]["binaryData"]["offsets.json.gz"]
    found: Mapping[str, Any] = json.loads(gzip.decompress(base64.b64decode(data)))
    return found


def copies_of(number: int, at: int = 7) -> PositionCopies:
    return PositionCopies({ShardId(f"clicks/{shard:05}"): at for shard in range(number)})


async def test_the_copies_of_a_small_group_cost_one_request(server: PlayedConfigMaps, store: ConfigMapOwnership) -> None:
    version = await store.save_copies(GROUP, copies_of(10), "")
    await store.save_copies(GROUP, copies_of(11), version)

    assert server.requests == ["POST ", "PUT /clicks-offsets-0"]


async def test_copies_that_a_version_before_this_one_wrote_are_read(
    server: PlayedConfigMaps, store: ConfigMapOwnership
) -> None:
    for number in range(2):
        before = {"format": 1, "shards": [f"clicks/{number}"], "offsets": [number + 5]}
        data = gzip.compress(json.dumps(before).encode())
        part = f"offsets-{number}"
        server.put(f"{COLLECTION}/clicks-{part}", body(GROUP, part, "offsets.json.gz", data))

    found = await store.load_copies(GROUP)

    assert found.copies == PositionCopies({SHARD: 5, ShardId("clicks/1"): 6})
    await store.save_copies(GROUP, copies_of(3), found.version)
    assert (await store.load_copies(GROUP)).copies == copies_of(3)
    assert set(server.objects) == {FIRST}
    assert {"format", "shards", "offsets"} < said(server, FIRST).keys(), "what the version before reads"


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ({"offsets": [float("inf")]}, "'inf' is no position: it must be an integer from 0 on with at most 56 digits"),
        ({"offsets": [-5]}, "'-5' is no position: it must be an integer from 0 on with at most 56 digits"),
        ({"shards": [5]}, "5 is no shard"),
        ({"revision": float("inf")}, "'inf' is no position"),
        ({"refreshed": 10**400}, "int too large to convert to float"),
        ({"refreshed": float("nan")}, "refreshed is nan"),
        ("[" * 200_000, "maximum recursion depth exceeded"),
    ],
    ids=lambda given: str(given)[:40],
)
async def test_copies_that_somebody_has_damaged_are_named_and_count_as_none(
    server: PlayedConfigMaps, store: ConfigMapOwnership, caplog: pytest.LogCaptureFixture, damage: Json | str, why: str
) -> None:
    whole = {"format": 1, "shards": ["clicks/0"], "offsets": [5]}
    text = damage if isinstance(damage, str) else json.dumps(whole | damage)
    server.put(FIRST, body(GROUP, "offsets-0", "offsets.json.gz", gzip.compress(text.encode())))

    found = await store.load_copies(GROUP)

    said = "ConfigMap clicks-offsets-0, a copy of positions of group demo/clicks, cannot be read and is left aside until"
    assert (found.copies, [line.message.startswith(said) for line in caplog.records]) == (PositionCopies(), [True])
    assert why in caplog.records[0].message


async def test_a_part_that_is_made_late_is_not_read_and_is_written_over_when_it_is_needed(
    server: PlayedConfigMaps, store: ConfigMapOwnership
) -> None:
    server.refuse[f"POST {COLLECTION}"] = ApiUnavailableError("no answer within 5 s")
    with pytest.raises(OutcomeUnknownError, match="may or may not be copied"):
        await store.save_copies(GROUP, copies_of(40_001, at=99), "")
    assert await store.load_copies(GROUP) == StoredCopies(PositionCopies(), "")
    version = await store.save_copies(GROUP, copies_of(10), "")

    late = {"format": 1, "parts": 2, "shards": ["clicks/40000"], "offsets": [99]}
    server.put(SECOND, body(GROUP, "offsets-1", "offsets.json.gz", gzip.compress(json.dumps(late).encode())))

    assert (await store.load_copies(GROUP)).copies == copies_of(10)
    with pytest.raises(OwnershipConflictError):
        await store.save_copies(GROUP, copies_of(40_001), version)
    await store.save_copies(GROUP, copies_of(40_001), (await store.load_copies(GROUP)).version)
    assert (await store.load_copies(GROUP)).copies == copies_of(40_001)


@pytest.mark.parametrize(
    ("shards", "left"),
    [
        (40_001, {1}),
        (80_001, {2}),
        (10, {1, 2}),
        (80_001, {0, 2}),
        (10, {0, 2}),
        (80_001, {0, 3}),
    ],
)
async def test_copies_are_written_over_parts_that_an_earlier_write_has_left_with_gaps(
    server: PlayedConfigMaps, store: ConfigMapOwnership, shards: int, left: set[int]
) -> None:
    await store.save_copies(GROUP, copies_of(120_001, at=3), "")
    for number in set(range(4)) - left:
        del server.objects[f"{COLLECTION}/clicks-offsets-{number}"]

    for _ in range(3):  # as often as the coordinator tries
        found = await store.load_copies(GROUP)
        try:
            await store.save_copies(GROUP, copies_of(shards), found.version)
        except OwnershipConflictError:
            continue
        break
    else:
        raise AssertionError("it is refused for ever")

    assert (await store.load_copies(GROUP)).copies == copies_of(shards)


async def test_nothing_is_read_of_copies_without_the_first_part(server: PlayedConfigMaps, store: ConfigMapOwnership) -> None:
    await store.save_copies(GROUP, copies_of(40_001), "")
    del server.objects[FIRST]
    assert await store.load_copies(GROUP) == StoredCopies(PositionCopies(), "")

    with pytest.raises(OwnershipConflictError):
        await store.save_copies(GROUP, copies_of(40_001), "")

    second = server.objects[SECOND]["metadata"]["resourceVersion"]
    assert await store.load_copies(GROUP) == StoredCopies(PositionCopies(), f"/{second}")


async def test_what_is_not_needed_any_more_goes_from_the_last_part_on(
    server: PlayedConfigMaps, store: ConfigMapOwnership
) -> None:
    version = await store.save_copies(GROUP, copies_of(120_001), "")
    server.refuse[f"DELETE {COLLECTION}/clicks-offsets-2"] = ApiUnavailableError("no answer within 5 s")
    with pytest.raises(OutcomeUnknownError):
        await store.save_copies(GROUP, copies_of(10), version)
    assert set(server.objects) == {FIRST, SECOND, f"{COLLECTION}/clicks-offsets-2"}

    await store.save_copies(GROUP, copies_of(11), (await store.load_copies(GROUP)).version)

    assert set(server.objects) == {FIRST}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (ApiError("refused", 409, "Conflict"), OwnershipConflictError),
        (ApiError("gone", 404, "NotFound"), OwnershipConflictError),
        (ApiError("broken", 500, "InternalError"), OutcomeUnknownError),
        (ApiError("forbidden", 403, "Forbidden"), OwnershipUnavailableError),
        (ApiUnavailableError("no answer"), OutcomeUnknownError),
    ],
)
async def test_what_became_of_a_copy_is_told_by_the_error(
    server: PlayedConfigMaps, store: ConfigMapOwnership, answer: Exception, error: type[Exception]
) -> None:
    version = await store.save_copies(GROUP, copies_of(1), "")
    server.refuse[f"PUT {FIRST}"] = answer

    with pytest.raises(error, match="demo/clicks"):
        await store.save_copies(GROUP, copies_of(2), version)


async def test_copies_that_cannot_be_read_now_are_told_from_those_that_are_not_there(
    server: PlayedConfigMaps, store: ConfigMapOwnership
) -> None:
    server.refuse[f"GET {FIRST}"] = ApiError("forbidden", 403, "Forbidden")

    with pytest.raises(OwnershipUnavailableError, match="cannot read the copied positions of group demo/clicks"):
        await store.load_copies(GROUP)


async def test_an_older_copy_that_somebody_put_back_is_told_from_what_a_coordinator_wrote(
    server: PlayedConfigMaps, store: ConfigMapOwnership
) -> None:
    state = f"{COLLECTION}/clicks-state"
    first = await store.save(GROUP, b"older", None)
    older = copy.deepcopy(server.objects[state])
    await store.save(GROUP, b"newer", first)
    server.put(state, server.objects[state], manager="kubectl-label")
    ours = await store.load(GROUP)

    server.put(state, older, manager="kubectl-replace")
    theirs = await store.load(GROUP)

    assert ours is not None
    assert theirs is not None
    assert (ours.data, ours.foreign, theirs.data, theirs.foreign) == (b"newer", False, b"older", True)
    await store.save(GROUP, b"newest", theirs.version)
    again = await store.load(GROUP)
    assert again is not None
    assert not again.foreign


def test_a_server_that_does_not_note_who_wrote_what_shows_nobody() -> None:
    assert not foreign({"metadata": {}}, "key")
    assert not foreign({"metadata": {"managedFields": []}}, "key")
    assert foreign({"metadata": {"managedFields": [{"manager": "velero"}]}}, "key")
