"""The adapters of one machine keep the contracts of the ports, on a real database file and a real lock."""

from __future__ import annotations

import asyncio
import base64
import fcntl
import gzip
import itertools
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shardherd.adapters.local.database import Database, DatabaseError
from shardherd.adapters.local.events import LocalSecrets, SqliteEvents, events
from shardherd.adapters.local.identity import FileLeadership, SignedTokens, holder, secret_of
from shardherd.adapters.local.objects import GROUP, POD, SECRET, STATEFUL_SET, LocalCluster, Objects
from shardherd.adapters.local.ownership import SqliteOwnership
from shardherd.clock import SystemClock
from shardherd.core.group.records import PositionCopies
from shardherd.core.model.nouns import GroupIdentity, ShardId
from shardherd.ports import Caller, StoredCopies, StoredOwnership
from tests.contract.cluster import EventsContract, EventsLab, LeadershipContract, LeadershipLab, TokensContract
from tests.contract.objects import ClusterContract, Json, ObjectsLab
from tests.contract.ownership import OwnershipContract
from tests.contract.secrets import SecretsContract, SecretsLab
from tests.unit.controller.builders import resource

GROUP_ID = GroupIdentity("demo", "clicks", "uid-1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    found = Database(path)
    yield found
    found.close()


@pytest.fixture
def objects(database: Database) -> Objects:
    return Objects(database)


def put(objects: Objects, kind: str, manifest: Json) -> Json:
    metadata = manifest["metadata"]
    made = objects.change((kind, metadata["namespace"], metadata["name"]), lambda _: {"kind": kind, **manifest})
    assert made is not None
    return made


class TestSqliteOwnership(OwnershipContract):
    @pytest.fixture
    def store(self, database: Database) -> SqliteOwnership:
        return SqliteOwnership(database)

    @pytest.fixture
    def group(self) -> GroupIdentity:
        return GROUP_ID

    async def test_what_was_saved_is_there_for_the_next_process(self, path: Path) -> None:
        first = Database(path)
        version = await SqliteOwnership(first).save(GROUP_ID, b"first", None)
        await SqliteOwnership(first).save_copies(GROUP_ID, PositionCopies({ShardId("clicks/0"): 7}), "")
        # It is not closed: its process may have been killed.
        second = SqliteOwnership(Database(path))

        assert await second.load(GROUP_ID) == StoredOwnership(b"first", version)
        assert (await second.load_copies(GROUP_ID)).copies == PositionCopies({ShardId("clicks/0"): 7})

    @pytest.mark.parametrize(
        "content",
        [b"no gzip", gzip.compress(b"[" * 200_000), gzip.compress(b'{"format":1,"shards":["clicks/0"],"offsets":[-5]}')],
    )
    async def test_copies_that_are_damaged_count_as_none_and_are_replaced(
        self, database: Database, store: SqliteOwnership, content: bytes
    ) -> None:
        version = await store.save_copies(GROUP_ID, PositionCopies({ShardId("clicks/0"): 7}), "")
        database.write(lambda sql: sql.execute("UPDATE copies SET data = ?", (content,)))

        assert await store.load_copies(GROUP_ID) == StoredCopies(PositionCopies(), version)
        await store.save_copies(GROUP_ID, PositionCopies({ShardId("clicks/0"): 8}), version)
        assert (await store.load_copies(GROUP_ID)).copies == PositionCopies({ShardId("clicks/0"): 8})

    async def test_what_a_deleted_group_of_the_same_name_left_is_not_taken_over(self, store: SqliteOwnership) -> None:
        deleted = GroupIdentity(GROUP_ID.namespace, GROUP_ID.name, "uid-0")
        await store.save(deleted, b"of the deleted group", None)
        assert await store.load(GROUP_ID) is None

        version = await store.save(GROUP_ID, b"of the new group", None)

        assert await store.load(GROUP_ID) == StoredOwnership(b"of the new group", version)

    async def test_a_version_never_comes_back(self, store: SqliteOwnership) -> None:
        before = await store.save(GROUP_ID, b"first", None)
        store.forget(GROUP_ID.uid)

        assert await store.save(GROUP_ID, b"first", None) != before

    def test_a_file_of_a_later_version_is_refused_by_its_format(self, path: Path) -> None:
        database = Database(path)
        database._connection.execute("PRAGMA user_version = 7")
        database.close()

        with pytest.raises(DatabaseError, match=r"state\.db has format 7, this version of shardherd reads 1"):
            Database(path)

    def test_what_is_no_database_is_refused_by_its_name(self, path: Path) -> None:
        path.write_bytes(b"no database at all, but long enough to have a header of one" * 100)

        with pytest.raises(DatabaseError, match=r"state\.db cannot be used \(file is not a database\)"):
            Database(path)

    def test_nobody_else_may_read_the_file(self, database: Database, path: Path) -> None:
        assert path.stat().st_mode & 0o777 == 0o600


class TestLocalSecrets(SecretsContract):
    @pytest.fixture
    def lab(self, objects: Objects) -> SecretsLab:
        async def put_secret(name: str, data: dict[str, bytes], labelled: bool) -> None:
            labels = {"shardherd.dev/kafka-credentials": "true"} if labelled else {}
            encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
            put(objects, SECRET, {"metadata": {"namespace": "shop", "name": name, "labels": labels}, "data": encoded})

        return SecretsLab(LocalSecrets(objects), "shop", put_secret, objects.database.close)


class TestFileLeadership(LeadershipContract):
    @pytest.fixture
    async def lab(self, tmp_path: Path) -> AsyncIterator[LeadershipLab]:
        path = tmp_path / "operator.lock"
        leadership, another = FileLeadership(path), FileLeadership(path)

        async def hold() -> None:
            assert another.take()

        async def let_go() -> None:
            another.let_go()

        async def take_away() -> None:
            path.unlink()

        yield LeadershipLab(leadership, SystemClock(), hold, let_go, take_away)
        leadership.let_go()
        another.let_go()

    def test_it_is_told_who_holds_it(self, tmp_path: Path) -> None:
        path = tmp_path / "operator.lock"
        leadership = FileLeadership(path)
        assert holder(path) is None
        assert leadership.take()
        assert holder(path) == os.getpid()

        leadership.let_go()

        assert holder(path) is None

    async def test_a_process_that_is_killed_holds_it_no_longer(self, tmp_path: Path) -> None:
        path = tmp_path / "operator.lock"
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(writing, b"x")
            signal.pause()  # until it is killed
            os._exit(0)
        await asyncio.to_thread(os.read, reading, 1)
        leadership = FileLeadership(path)
        assert not leadership.take()

        os.kill(child, 9)
        await asyncio.to_thread(os.waitpid, child, 0)
        await asyncio.wait_for(leadership.acquire(), 60)

        assert leadership.deadline() == float("inf")
        await leadership.release()


@pytest.mark.parametrize("left", [None, "", "12", "no secret at all"])
def test_a_secret_is_made_once_and_anew_where_it_was_not_written_to_its_end(left: str | None, tmp_path: Path) -> None:
    path = tmp_path / "token.key"
    if left is not None:
        path.write_text(left)

    made = secret_of(tmp_path)

    assert (len(made), secret_of(tmp_path), path.stat().st_mode & 0o777) == (32, made, 0o600)
    assert list(tmp_path.iterdir()) == [path]


class LocalTokensLab:
    """One pod with its token."""

    def __init__(self, objects: Objects, folder: Path) -> None:
        group = {"kind": "ConsumerGroup", "name": "clicks", "uid": "group-uid", "controller": True}
        put(
            objects,
            STATEFUL_SET,
            {"metadata": {"namespace": "demo", "name": "clicks", "uid": "set", "ownerReferences": [group]}},
        )
        owner = {"kind": "StatefulSet", "name": "clicks", "uid": "set", "controller": True}
        metadata = {"namespace": "demo", "name": "clicks-0", "uid": "pod-uid-0", "ownerReferences": [owner]}
        self.objects = objects
        self.pod = put(objects, POD, {"metadata": metadata, "spec": {"serviceAccountName": "spark"}})
        self.reviewer = SignedTokens(secret_of(folder), objects)
        self.valid = self.reviewer.of_pod(self.pod)
        self.caller = Caller("demo", "spark", "clicks-0", "pod-uid-0", "clicks", group_uid="group-uid")

    def cut_off(self) -> None:
        self.objects.database.close()


class TestSignedTokens(TokensContract):
    @pytest.fixture
    def lab(self, objects: Objects, tmp_path: Path) -> LocalTokensLab:
        return LocalTokensLab(objects, tmp_path)

    async def test_a_token_of_a_pod_that_is_gone_is_nobodys(self, lab: LocalTokensLab) -> None:
        lab.objects.change((POD, "demo", "clicks-0"), lambda _: None)

        assert await lab.reviewer.review(lab.valid) is None

    async def test_a_token_of_an_earlier_pod_of_the_same_name_is_nobodys(self, lab: LocalTokensLab) -> None:
        lab.objects.change((POD, "demo", "clicks-0"), lambda _: None)
        put(lab.objects, POD, {**lab.pod, "metadata": {**lab.pod["metadata"], "uid": "pod-uid-1"}})

        assert await lab.reviewer.review(lab.valid) is None

    async def test_the_folders_owner_may_what_no_pod_may(self, lab: LocalTokensLab) -> None:
        user, pod = await lab.reviewer.review(lab.reviewer.of_user()), await lab.reviewer.review(lab.valid)

        assert user is not None
        assert pod is not None
        assert await lab.reviewer.may(user, "update", "demo", "clicks")
        assert not await lab.reviewer.may(pod, "update", "demo", "clicks")

    async def test_the_secret_stays_and_is_for_nobody_else(self, lab: LocalTokensLab, tmp_path: Path) -> None:
        again = SignedTokens(secret_of(tmp_path), lab.objects)

        assert await again.review(lab.valid) == lab.caller
        assert (tmp_path / "token.key").stat().st_mode & 0o777 == 0o600


class TestSqliteEvents(EventsContract):
    @pytest.fixture
    def lab(self, database: Database) -> EventsLab:
        recorder = SqliteEvents(database, SystemClock())

        async def recorded() -> list[tuple[str, str, bool, int]]:
            return [(event.reason, event.message, event.warning, event.count) for event in events(database)]

        return EventsLab(recorder, GROUP_ID, recorded, flush=recorder.flush)


class LocalObjectsLab(ObjectsLab):
    """Puts objects into the database. Its pods are placed nowhere, so nothing runs that would have to end."""

    namespace = "shop"

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._numbers = itertools.count(1)

    async def group(self) -> Json:
        number = next(self._numbers)
        made = resource(uid=f"11111111-0000-0000-0000-{number:012d}")
        made["metadata"]["name"] = f"group-{number}"
        return put(self._objects, GROUP, made)

    async def delete_group(self, name: str) -> None:
        self._objects.change((GROUP, self.namespace, name), lambda _: None)

    async def pod(self, group: str, name: str) -> Json:
        metadata = {"name": name, "namespace": "shop", "labels": {"shardherd.dev/consumergroup": group}}
        return put(self._objects, POD, {"metadata": metadata, "status": {}})


class TestLocalCluster(ClusterContract):
    @pytest.fixture
    def cluster_port(self, objects: Objects) -> LocalCluster:
        return LocalCluster(objects)

    @pytest.fixture
    def lab(self, objects: Objects) -> LocalObjectsLab:
        return LocalObjectsLab(objects)
