"""Which namespaces are served where a selector chooses them: by the watch, by listings, and what is said meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shardherd.controller import served as module
from shardherd.controller.served import GRACE, Served
from shardherd.core.model.errors import CoordinatorUnavailableError, UnknownGroupError
from shardherd.ports import ClusterRefusedError, ClusterUnavailableError
from tests.harness.simulated_clock import SimulatedClock

SELECTOR = "shardherd.dev/operator=a"


class PlayedNamespaces:
    """The namespaces that match and the groups in them, at a version that the test sets. Answers when the test lets it."""

    def __init__(self, *names: str) -> None:
        self.names, self.version = set(names), 10
        self.within: dict[str, tuple[str, ...]] = {}
        self.errors: list[Exception] = []
        self.listed = 0
        self.searched: list[str] = []
        self.gate, self.searching = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.searching.set()
        self.asked = asyncio.Event()

    async def until(self, count: Callable[[], int], wanted: int) -> None:
        """Wait until so much was asked."""
        while count() < wanted:
            self.asked.clear()
            await asyncio.wait_for(self.asked.wait(), 5)

    async def chosen(self) -> tuple[frozenset[str], int]:
        if self.errors:
            raise self.errors.pop(0)
        found = frozenset(self.names), self.version
        await self.gate.wait()
        self.listed += 1
        self.asked.set()
        return found

    async def groups(self, namespace: str) -> tuple[str, ...]:
        self.searched.append(namespace)
        self.asked.set()
        await self.searching.wait()
        if self.errors:
            raise self.errors.pop(0)
        return self.within.get(namespace, ())


async def turns() -> None:
    """Let everybody go as far as they get."""
    for _ in range(5):
        await asyncio.sleep(0)


class Town:
    """A `Served`, what it is over, and what it has told, in order."""

    def __init__(self, *names: str) -> None:
        self.namespaces = PlayedNamespaces(*names)
        self.clock = SimulatedClock()
        self.told: list[tuple[str, ...]] = []
        self.served = Served(
            SELECTOR,
            self.namespaces,
            self.clock,
            began=lambda name: self.told.append(("began", name)),
            ended=lambda name: self.told.append(("ended", name)),
        )

    def let_go(self, namespace: str) -> None:
        assert namespace not in self.served, "nothing may be seen of it any more"
        self.told.append(("let go", namespace))

    def found_group(self, key: tuple[str, str]) -> None:
        assert key[0] in self.served
        self.told.append(("found", *key))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        controller: Any = self
        task = asyncio.create_task(self.served.run(controller))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def saw(self, name: str, version: int, event: str | None) -> None:
        self.served.saw({"metadata": {"name": name, "resourceVersion": str(version)}}, event)

    async def listed(self, times: int = 1) -> None:
        """Until so many more listings were taken in."""
        await self.namespaces.until(lambda: self.namespaces.listed, self.namespaces.listed + times)
        await turns()

    def all(self, *names: str) -> list[str]:
        return [name for name in names if name in self.served]


@pytest.fixture
async def town(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Town]:
    """One that has begun with two namespaces, and lists again only when the watch wakes it."""
    town = Town("shop", "web")
    async with town.running():
        await town.served.known.wait()
        yield town


async def test_before_the_first_listing_none_is_served_and_nothing_is_said_to_be_absent() -> None:
    town = Town("shop")
    town.namespaces.gate.clear()
    async with town.running():
        await asyncio.sleep(0)
        assert (town.all("shop"), town.served.known.is_set()) == ([], False)
        refusal = town.served.refusal("shop", "clicks")
        assert isinstance(refusal, CoordinatorUnavailableError)
        assert "does not know yet which namespaces it serves; ask again" in refusal.message
        town.namespaces.gate.set()
        await town.served.known.wait()
        assert (town.all("shop"), town.told) == (["shop"], [("began", "shop")])
    assert town.namespaces.searched == [], "the watches, which begin now, tell of all groups"


async def test_a_namespace_that_begins_to_match_is_served_and_its_groups_are_found(town: Town) -> None:
    town.namespaces.names.add("new")
    town.namespaces.within["new"] = ("clicks", "views")
    town.told.clear()
    town.saw("new", 11, "ADDED")
    assert town.all("shop", "web", "new") == ["shop", "web", "new"]
    town.namespaces.version = 11
    await town.listed()
    assert town.told == [("began", "new"), ("found", "new", "clicks"), ("found", "new", "views")]
    town.saw("new", 12, "MODIFIED")
    await asyncio.sleep(0)
    assert (len(town.told), town.namespaces.searched) == (3, ["new"])


async def test_a_namespace_that_ceases_to_match_is_let_go_before_its_objects_are_forgotten(town: Town) -> None:
    town.told.clear()
    town.saw("web", 11, "DELETED")
    assert (town.all("shop", "web"), town.told) == (["shop"], [("let go", "web"), ("ended", "web")])
    town.saw("web", 12, "DELETED")
    assert len(town.told) == 2


async def test_what_ceased_to_match_while_no_watch_was_there_is_let_go_once_it_begins_anew(town: Town) -> None:
    town.namespaces.names, town.namespaces.version = {"shop"}, 20
    town.told.clear()
    town.saw("shop", 10, None)
    await town.listed()
    assert (town.all("shop", "web"), town.told) == (["shop"], [("let go", "web"), ("ended", "web")])


async def test_what_no_watch_ever_tells_of_is_seen_by_the_next_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LISTED_AGAIN", 0.001)
    town = Town("shop", "web")
    async with town.running():
        await town.served.known.wait()
        town.namespaces.names, town.namespaces.version = {"shop", "new"}, 20
        town.namespaces.within["new"] = ("clicks",)
        await town.listed(2)
        assert town.all("shop", "web", "new") == ["shop", "new"]
        assert town.told[-4:] == [("let go", "web"), ("ended", "web"), ("began", "new"), ("found", "new", "clicks")]


async def test_a_listing_does_not_undo_what_the_watch_told_while_it_was_made(town: Town) -> None:
    town.namespaces.gate.clear()
    town.saw("shop", 10, None)  # a listing is due, of what is there at 10
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    town.saw("web", 11, "DELETED")
    town.saw("new", 12, "ADDED")
    town.namespaces.gate.set()
    await town.listed()
    assert town.all("shop", "web", "new") == ["shop", "new"]


async def test_an_event_that_is_older_than_what_is_known_changes_nothing(town: Town) -> None:
    town.namespaces.names, town.namespaces.version = {"shop"}, 20
    town.saw("shop", 10, None)
    await town.listed()
    town.saw("web", 15, "MODIFIED")
    assert town.all("shop", "web") == ["shop"], "a listing has seen it without the label since"
    town.saw("web", 30, "ADDED")
    town.saw("web", 29, "DELETED")
    assert town.all("shop", "web") == ["shop", "web"], "that was the one of the same name before"


async def test_groups_are_searched_until_they_are_found(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY", 0.001)
    town.namespaces.names |= {"new", "newer"}
    town.namespaces.within |= {"new": ("clicks",), "newer": ("views",)}
    town.namespaces.version = 12
    town.saw("new", 11, "ADDED")
    town.saw("newer", 12, "ADDED")
    town.namespaces.gate.clear()
    await turns()
    town.namespaces.errors.append(ClusterUnavailableError("no answer"))
    town.namespaces.gate.set()
    await town.listed(2)
    assert [each for each in town.told if each[0] == "found"] == [("found", "new", "clicks"), ("found", "newer", "views")]
    assert town.namespaces.searched == ["new", "new", "newer"]


async def test_groups_are_not_told_of_where_the_label_went_while_they_were_searched(town: Town) -> None:
    town.namespaces.within["short"] = ("views",)
    town.saw("short", 11, "ADDED")
    town.namespaces.names.add("short")
    town.namespaces.version = 11
    town.namespaces.searching.clear()
    await town.namespaces.until(lambda: len(town.namespaces.searched), 1)
    town.saw("short", 12, "DELETED")
    town.namespaces.searching.set()
    await turns()
    assert [each for each in town.told if each[0] == "found"] == []


@pytest.mark.parametrize(
    ("error", "level", "said"),
    [
        (ClusterUnavailableError("no answer"), "WARNING", "is not known: no answer"),
        (ClusterRefusedError("403"), "ERROR", "is not known: 403; the chart gives the right"),
    ],
)
async def test_why_nothing_is_known_is_said_once_and_it_is_tried_until_it_is(
    error: Exception, level: str, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY", 0.001)
    town = Town("shop")
    town.namespaces.errors = [error, error]
    async with town.running():
        await town.served.known.wait()
    complaints = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [(record.levelname, record.getMessage()) for record in complaints] == [
        (level, f"which namespaces match {SELECTOR} {said}")
    ]


async def test_who_asks_for_a_group_is_told_why_it_is_not_known(town: Town) -> None:
    refusal = town.served.refusal("other", "clicks")
    assert isinstance(refusal, UnknownGroupError)
    assert (refusal.group, refusal.message) == (
        "other/clicks",
        "group other/clicks is not served by this operator: it serves namespaces with labels that match"
        " 'shardherd.dev/operator=a', and those of 'other' do not; label the namespace, or have the operator that serves it"
        " replace this pod",
    )
    just = town.served.refusal("shop", "clicks")
    assert isinstance(just, CoordinatorUnavailableError)
    assert "its namespace has just begun to be served; ask again" in just.message
    town.clock.advance(GRACE)
    assert town.served.refusal("shop", "clicks") is None, "there is no such group: that is for the coordinator to say"
