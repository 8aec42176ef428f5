"""Groups of one machine, read from its state folder."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardherd.adapters.local.database import Database
from shardherd.adapters.local.identity import FileLeadership
from shardherd.adapters.local.objects import POD, Objects
from shardherd.adapters.local.ownership import SqliteOwnership
from shardherd.cli import main
from shardherd.core.group import ownership
from shardherd.core.planning.listing import identity_of
from shardherd.inspect import changes
from shardherd.inspect.folder import Folder, patched
from shardherd.inspect.observed import ConflictError, InspectError
from shardherd.local.manifest import declare
from tests.unit.inspect.observations import pod, stored
from tests.unit.local.manifests import Json, group


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A state folder with one group of two consumers, and no operator."""
    database = Database(tmp_path / "state.db")
    objects = Objects(database)
    file = tmp_path / "group.yaml"
    file.write_text(yaml.safe_dump(group()))
    declare(objects, [file])
    identity = identity_of(next(each for each in objects.all() if each["kind"] == "ConsumerGroup"))
    asyncio.run(SqliteOwnership(database).save(identity, ownership.dumps(stored()), None))
    for name in ("clicks-0", "clicks-1"):
        body = {"kind": POD, **pod(name)}
        objects.change((POD, "shop", name), partial(_made, body))
    yield tmp_path
    database.close()


def _made(body: Json, _: Json | None) -> Json:
    return body


@pytest.fixture
def said(folder: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--local", "--state", str(folder)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_the_same_commands_show_it(said: Any) -> None:
    code, out, err = said("shards", "clicks")
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == [
        "SHARD      STATE          HOLDER    NEXT  EPOCH  POSITION  END  LAG  VERDICT  SINCE",
        "clicks/0   ALREADY_ALLOC  clicks-0  -     1      -         -    -    -        -",
    ]
    assert out.splitlines()[-1] == "Not read: the coordinator: no operator runs, start it by `shardherd local up`"
    assert (
        said("status")[1].splitlines()[1] == "shop/clicks  Unknown  -       -         0/-        -    nothing was looked at yet"
    )


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        (b"no JSON", "who holds which shard: the stored ownership is damaged: it is not JSON"),
        (b'{"format": 999}', "who holds which shard: the stored ownership has format 999"),
    ],
)
def test_an_ownership_that_cannot_be_read_is_told_beside_the_rest(said: Any, folder: Path, held: bytes, reason: str) -> None:
    with closing(Database(folder / "state.db")) as database:
        (resource,) = Folder(folder, None).groups()
        store = SqliteOwnership(database)
        found = asyncio.run(store.load(identity_of(resource)))
        assert found is not None
        asyncio.run(store.save(identity_of(resource), held, found.version))
    code, out, err = said("status", "clicks")
    assert (code, err) == (0, "")
    assert out.splitlines()[1].startswith("shop/clicks  Unknown")
    assert f"Not read: {reason}" in out


class Shards(BaseHTTPRequestHandler):
    """Three shards of the group in the namespace `shop` are held, one of that in `other`."""

    def do_GET(self) -> None:
        held = [{"shard": f"t/{number}", "holder": "clicks-0"} for number in range(3)]
        body = json.dumps(held if "/shop/" in self.path else held[:1]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_consumers_of_one_name_in_two_namespaces_are_shown_with_their_own_shards(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = folder / "other.yaml", group()
    other["metadata"]["namespace"] = "other"
    file.write_text(yaml.safe_dump(other))
    leadership = FileLeadership(folder / "operator.lock")
    assert leadership.take()
    with HTTPServer(("127.0.0.1", 0), Shards) as server, ThreadPoolExecutor(1) as beside:
        with closing(Database(folder / "state.db")) as database:
            objects = Objects(database)
            declare(objects, [file])
            body: Json = {"kind": POD, **pod("clicks-0")}
            body["metadata"] |= {"namespace": "other", "uid": "uid-other"}
            objects.change((POD, "other", "clicks-0"), partial(_made, body))
            database.note("api-port", str(server.server_port))
        serving = beside.submit(server.serve_forever, 0.01)
        assert main(["local", "status", "--state", str(folder)]) == 0
        server.shutdown()
        serving.result()
    leadership.let_go()
    shown = [line.split() for line in capsys.readouterr().out.splitlines() if "clicks-" in line]
    assert [(each[0], each[5]) for each in shown] == [("other/clicks-0", "1"), ("shop/clicks-0", "3"), ("clicks-1", "0")]


def test_it_is_changed_as_a_cluster_is(said: Any, folder: Path) -> None:
    there = Folder(folder, None)
    assert said("pause", "clicks")[0] == 0
    assert there.resource("clicks")["spec"]["paused"] is True
    assert there.resource("clicks")["metadata"]["generation"] == 2
    assert said("drain", "clicks", "clicks-1") == (
        0,
        "clicks-1 is to give up its 2 shards and gets none, until `drain --undo` or its pod is replaced\n",
        "",
    )
    assert [each.cordoned for each in there.group("clicks").drivers()] == [False, True]
    with pytest.raises(InspectError, match=r"spec\.sessionTimeout"):
        there.change("clicks", {"spec": {"sessionTimeout": "1s"}})


def test_who_has_read_enough_of_what_is_printed_is_no_failure(folder: Path) -> None:
    log = folder / "logs" / "shop" / "clicks-0" / "uid.1.log"
    log.parent.mkdir(parents=True)
    log.write_text("a line\n" * 100_000)
    for verb in (["status"], ["logs", "clicks-0", "--follow"]):
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "wb") as output:
            ended = subprocess.run(
                [sys.executable, "-m", "shardherd", "local", *verb, "--state", str(folder)],
                stdout=output,
                stderr=subprocess.PIPE,
                check=False,
            )
        assert (ended.returncode, ended.stderr) == (0, b""), verb


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"])
def test_an_operator_that_ends_in_the_middle_of_its_answer_has_not_answered(
    answer: bytes, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leadership = FileLeadership(folder / "operator.lock")
    assert leadership.take()
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as beside:
        with closing(Database(folder / "state.db")) as database:
            database.note("api-port", str(server.getsockname()[1]))
        ending = beside.submit(_answer_and_end, server, answer)
        assert main(["status", "clicks", "--local", "--state", str(folder)]) == 0
        ending.result()
    leadership.let_go()
    assert "the coordinator: it has not loaded the group yet" in capsys.readouterr().out


def _answer_and_end(server: socket.socket, answer: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(10_000)
        connection.sendall(answer)


@pytest.mark.parametrize("command", [["pause", "clicks", "--local"], ["local", "scale", "clicks", "2"]])
def test_nobody_is_told_to_remove_a_folder_that_is_locked_or_full(
    command: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shardherd.adapters.local.database.BUSY", 0.0)
    with closing(sqlite3.connect(folder / "state.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        code = main([*command, "--state", str(folder)])
    assert (code, capsys.readouterr()) == (
        1,
        (
            "",
            f"shardherd: {folder}/state.db cannot be used now (database is locked): see that its disk has room, that you may"
            " write there, and that no other process keeps it locked; then do this again\n",
        ),
    )


def test_a_pod_of_that_name_in_another_namespace_is_left_alone(folder: Path) -> None:
    there = Folder(folder, None)
    there.change_pod("other", "clicks-1", changes.cordoned(True))
    assert [each.cordoned for each in there.group("clicks").drivers()] == [False, False]


def test_what_is_decided_for_another_state_of_a_group_is_not_written(folder: Path) -> None:
    there = Folder(folder, None)
    seen = there.resource("clicks")["metadata"]["resourceVersion"]
    there.change("clicks", {"spec": {"paused": True}})
    with pytest.raises(ConflictError, match=r"^somebody else changed it at the same time: look again"):
        there.change("clicks", {"metadata": {"resourceVersion": seen}, "spec": {"paused": False}})
    assert there.resource("clicks")["spec"]["paused"] is True


def test_what_is_not_there_is_named(said: Any, folder: Path, tmp_path: Path) -> None:
    assert said("shards", "klicks") == (
        4,
        "",
        f"shardherd: there is no ConsumerGroup 'klicks' in {folder}, where there are: shop/clicks\n",
    )
    assert Folder(folder, "other").groups() == []
    with pytest.raises(InspectError, match="is no state folder: start one with `shardherd local up`"):
        Folder(tmp_path / "none", None)


def test_a_name_of_two_namespaces_needs_one(said: Any, folder: Path) -> None:
    file = folder / "other.yaml"
    other = group()
    other["metadata"]["namespace"] = "other"
    file.write_text(yaml.safe_dump(other))
    database = Database(folder / "state.db")
    declare(Objects(database), [file])
    database.close()
    assert said("shards", "clicks") == (
        2,
        "",
        "shardherd: 'clicks' is a group of the namespaces other, shop: name one by -n\n",
    )
    assert said("shards", "clicks", "-n", "shop")[0] == 0


def test_a_merge_patch_is_applied_as_an_api_server_does() -> None:
    # The examples of RFC 7386 that are about objects.
    assert patched({"a": "b"}, {"a": "c"}) == {"a": "c"}
    assert patched({"a": "b"}, {"a": None}) == {}
    assert patched({"a": ["b"]}, {"a": "c"}) == {"a": "c"}
    assert patched({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}) == {"a": {"b": "d"}}
    assert patched({"e": None}, {"a": 1}) == {"e": None, "a": 1}
    assert patched({}, {"a": {"bb": {"ccc": None}}}) == {"a": {"bb": {}}}
