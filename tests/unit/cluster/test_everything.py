"""How a cold machine gets its programs and images: what is missing, side by side, with word of how long is left."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dev.cluster.durations import ON_TWO_CORES, Durations, about
from dev.cluster.errors import ClusterError
from dev.cluster.everything import Lanes, Step
from dev.cluster.progress import step


@pytest.fixture
def durations(tmp_path: Path) -> Durations:
    return Durations(tmp_path / "durations.json")


class Machine:
    """Notes which steps were done; those in `there` are there already."""

    def __init__(self, *there: str) -> None:
        self.there = set(there)
        self.done: list[str] = []

    def step(self, name: str) -> Step:
        return Step(name, lambda: self.done.append(name), lambda: name in self.there)


def test_what_is_missing_is_done_lane_by_lane_in_order(durations: Durations) -> None:
    machine = Machine("etcd")
    Lanes([[machine.step(name) for name in ("etcd", "kubernetes", "helm")]], durations).run()
    assert machine.done == ["kubernetes", "helm"]


def test_nothing_is_said_where_nothing_is_missing(durations: Durations, capsys: pytest.CaptureFixture[str]) -> None:
    Lanes([[Machine("etcd").step("etcd")]], durations).run()
    assert capsys.readouterr().err == ""


def test_how_long_is_left_is_said_at_the_start_and_after_each_step(
    durations: Durations, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seconds in (("etcd", 60), ("kubernetes", 600), ("helm", 120)):
        durations.note(name, seconds)
    machine = Machine()
    Lanes([[machine.step(name) for name in ("etcd", "kubernetes", "helm")]], durations).run()
    assert capsys.readouterr().err.splitlines() == [
        "to be fetched and built, once: etcd, kubernetes, helm; about 13 minutes",
        "etcd is there; about 12 minutes left",
        "kubernetes is there; about 2 minutes left",
    ]


def test_how_long_it_would_take_is_known_before_it_begins(durations: Durations) -> None:
    durations.note("helm", 120)
    machine = Machine("etcd")
    assert Lanes([[machine.step("etcd"), machine.step("helm")]], durations).left() == "about 2 minutes"
    assert Lanes([[machine.step("etcd")]], durations).left() == ""
    assert machine.done == []


def test_lanes_go_on_side_by_side(durations: Durations) -> None:
    both = threading.Barrier(2, timeout=30)
    Lanes([[Step(name, both.wait, lambda: False)] for name in ("kubernetes", "images")], durations).run()
    assert not both.broken


def test_a_lane_that_fails_does_not_stop_the_other_and_is_told_at_the_end(durations: Durations) -> None:
    machine, broken = Machine(), Step("etcd", _fail, lambda: False)
    with pytest.raises(ClusterError, match="no network"):
        Lanes([[broken, machine.step("kubernetes")], [machine.step("packages"), machine.step("base")]], durations).run()
    assert machine.done == ["packages", "base"]


def _fail() -> None:
    raise ClusterError("no network")


def test_the_slowest_lane_says_how_long_is_left(durations: Durations) -> None:
    for name, seconds in (("a", 10), ("b", 20), ("c", 25)):
        durations.note(name, seconds)
    assert durations.left([["a", "b"], ["c"], []]) == 30
    assert durations.left([]) == 0


def test_before_its_first_time_a_step_takes_as_long_as_on_two_cores(durations: Durations) -> None:
    assert durations.of("kubernetes") == ON_TWO_CORES["kubernetes"]
    durations.note("kubernetes", 12.34)
    assert durations.of("kubernetes") == 12.3
    assert durations.of("never heard of") == 0


def test_durations_that_cannot_be_read_are_as_if_there_were_none(durations: Durations, tmp_path: Path) -> None:
    (tmp_path / "durations.json").write_text("{")
    assert durations.of("etcd") == ON_TWO_CORES["etcd"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (3, "less than a minute"),
        (55, "about a minute"),
        (89, "about a minute"),
        (100, "about 2 minutes"),
        (1500, "about 25 minutes"),
    ],
)
def test_a_time_is_told_no_more_exactly_than_it_is_known(seconds: float, said: str) -> None:
    assert about(seconds) == said


def test_a_step_with_a_name_says_how_long_it_takes_and_remembers_how_long_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHARDHERD_CACHE", str(tmp_path))
    Durations().note("etcd", 120)
    with step("building etcd", "etcd"):
        pass
    assert capsys.readouterr().err.splitlines()[0] == "  building etcd ... (about 2 minutes)"
    assert Durations().of("etcd") < 60


def test_what_a_failed_step_took_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDHERD_CACHE", str(tmp_path))
    with pytest.raises(ClusterError), step("building etcd", "etcd"):
        _fail()
    assert Durations().of("etcd") == ON_TWO_CORES["etcd"]
