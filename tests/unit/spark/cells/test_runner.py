"""The runner of cells' queries, with queries that are none of Spark's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from shardherd.core.consumer.cells import Begin, CellStart
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.spark.cells import runner
from shardherd.spark.cells.agent import Orders
from shardherd.spark.cells.build import Build, Cell
from shardherd.spark.cells.logged import Logged
from shardherd.spark.cells.runner import CellRunner

A0, A1 = ShardId("clicks/0"), ShardId("clicks/1")


class Query:
    """A query that is in a trigger whenever it is looked at, but for when the agent has parked it."""

    status = {"isTriggerActive": True}  # noqa: RUF012

    def __init__(self, scene: Scene) -> None:
        self.isActive = True
        self.scene = scene

    def stop(self) -> None:
        self.isActive = False


class Scene:
    """An agent that orders the cells 0 and 1, one after the other, and an application."""

    def __init__(self, logs: Mapping[int, Logged] | None = None) -> None:
        self.logs = logs or {}
        self.happened: list[Any] = []
        self.closed = False
        self.using = False
        self.started: list[bool] = []
        self.reads = {0}
        self.given = [CellStart(0, 3, {A0: Begin(9, 0)}), CellStart(1, 3, {A1: Begin(5, 5)})]

    def run(self, build: Build) -> None:
        context = SimpleNamespace(setLocalProperty=lambda *_: None)
        spark: Any = SimpleNamespace(sparkContext=context)
        locations: Any = SimpleNamespace(
            of=lambda cell, generation: f"{generation}/{cell}", logged=self.logged, group="uid", used=self.used
        )
        CellRunner(spark, self, locations, build, {}).run()

    @contextmanager
    def used(self) -> Iterator[None]:
        self.using = True
        yield
        self.using = False

    def logged(self, cell: int, generation: int) -> Logged | None:
        return self.logs.get(cell) if generation == 3 else None

    def orders(self, wait: float) -> Orders:
        start = (self.given.pop(0),) if self.given else ()
        return Orders(start, (), over=not start, finished=False)

    def began(self, each: CellStart) -> int | None:
        self.happened.append(("began", each.cell))
        return 1

    def known(self, cell: int, committed: Mapping[ShardId, Offset]) -> None:
        self.happened.append(("known", cell, dict(committed)))

    def parked(self, cell: int) -> bool:
        return self.closed

    def unfinished(self, cell: int) -> bool:
        return cell in self.reads

    def ended(self, cell: int, committed: Mapping[ShardId, Offset], failure: str = "", *, finished: bool = False) -> None:
        self.happened.append(("ended", cell, dict(committed), failure, finished))

    def lose(self, cell: int, why: str, location: str) -> None:
        self.happened.append(("lost", cell, location, why.partition(",")[0]))

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def _any_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "checked", lambda writer, _cell: writer)


def writer_of(scene: Scene) -> Any:
    def start() -> Query:
        scene.started.append(scene.using)
        return Query(scene)

    writer: Any = SimpleNamespace(start=start)
    writer.queryName = writer.option = writer.trigger = lambda *_, **__: writer
    return writer


def test_an_application_whose_function_fails_ends_though_its_other_queries_have_records_without_end() -> None:
    scene = Scene({0: Logged({A0: 12}, {A0: 9})})

    def build(cell: Cell) -> Any:
        if cell.number == 1:
            raise ValueError("out of luck")
        return writer_of(scene)

    with pytest.raises(ValueError, match="out of luck"):
        scene.run(build)
    assert scene.happened == [
        ("began", 0),
        ("known", 0, {A0: 9}),
        ("began", 1),
        ("ended", 1, {}, "", False),
        ("ended", 0, {A0: 9}, "", False),
    ]


def test_a_cell_of_which_all_is_known_is_let_go_of_without_a_look_at_the_storage() -> None:
    scene = Scene({0: Logged({A0: 12}, {A0: 9})})
    scene.reads = set()
    with pytest.raises(ValueError, match="enough"):
        scene.run(lambda cell: writer_of(scene) if cell.number == 0 else fail("enough"))
    assert scene.happened[-1] == ("ended", 0, {}, "", False)
    assert (scene.started, scene.using) == ([True], False), "its files are created as its location says"


def fail(why: str) -> Any:
    raise ValueError(why)


def test_a_cell_has_another_id_in_another_generation_as_its_batch_ids_begin_anew() -> None:
    ids: list[str] = []

    def build(cell: Cell) -> Any:
        ids.append(cell.id)
        raise ValueError("enough")

    for generation in (3, 4):
        scene = Scene()
        scene.given = [CellStart(0, generation, {A0: Begin(9, 9)})]
        with pytest.raises(ValueError, match="enough"):
            scene.run(build)
    assert ids == ["uid/3/0", "uid/4/0"]


def test_a_cell_whose_state_is_lost_is_not_built() -> None:
    scene = Scene()
    built: list[int] = []

    def build(cell: Cell) -> Any:
        built.append(cell.number)
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        scene.run(build)
    assert built == [1]
    assert scene.happened[:3] == [("began", 0), ("lost", 0, "3/0", "there is no log of Spark's"), ("ended", 0, {}, "", False)]
