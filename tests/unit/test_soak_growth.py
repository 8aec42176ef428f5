"""What counts as growth over a long run, and the sentence that names it."""

from __future__ import annotations

import os
import socket

import pytest

from dev.demo.account import Line
from dev.soak.gauge import use_of
from dev.soak.growth import Bound, Bounds, Growth, Look, Use, connections, growths, longest, verdict, warm_after

BOUNDS = Bounds(memory=Bound(0.1, 24), threads=Bound(more=4), files=Bound(more=12), sockets=Bound(more=12))


def look(at: float, memory: float = 100, *, run: str = "a", role: str = "leader", threads: int = 10) -> Look:
    return Look(at, run, role, f"pod-{run}", Use(memory, threads, files=30, sockets=20))


@pytest.mark.parametrize(("last", "holds"), [(100, True), (134, True), (135, False), (50, True)])
def test_a_figure_may_grow_by_a_share_and_by_so_much_besides(last: float, holds: bool) -> None:
    assert Growth("memory", 100, last, Bound(0.1, 24)).holds is holds


def test_what_may_not_grow_at_all_is_broken_by_one_more() -> None:
    assert Growth("objects in soak: pod", 6, 7, Bound()).line == Line("objects in soak: pod", "6 -> 7", "at most 6", False)
    assert Growth("objects in soak: pod", 6, 6, Bound()).line == Line("objects in soak: pod", "6 -> 6", "at most 6", True)


def test_a_process_is_warm_after_a_share_of_the_run_and_a_minute_at_least() -> None:
    assert [warm_after(seconds) for seconds in (300, 3600)] == [60, 540]


def test_the_run_that_lived_longest_in_a_role_is_compared_from_when_it_was_warm() -> None:
    short = [look(at, run="a") for at in range(0, 100, 10)]
    long = [look(at, run="b") for at in range(100, 300, 10)]
    before = [look(at, run="b", role="standby") for at in range(0, 100, 10)]
    assert longest([*short, *long, *before], "leader", 60) == long[6:]


def test_what_was_never_warm_in_a_role_is_not_compared() -> None:
    assert longest([look(at) for at in range(0, 61, 10)], "leader", 60) == ()
    assert longest([], "leader", 60) == ()
    assert growths([look(at) for at in range(5)], "leader", BOUNDS) == []


def test_the_connections_of_the_first_and_the_last_look_are_told_by_what_they_are_for() -> None:
    first, last = (Use(100, 10, 30, 20, connections) for connections in ({"to 443": 3, "at 8443": 2}, {"to 443": 5}))
    assert connections([Look(at, "a", "leader", "pod-a", use) for at, use in enumerate((first, last))]) == (
        "at 8443: 2 -> 0, to 443: 3 -> 5"
    )


def test_a_socket_is_at_the_port_that_we_listen_on_or_to_the_port_of_the_other_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            port, found = server.getsockname()[1], use_of([os.getpid()]).connections
    assert (found[f"at {port}"], found[f"to {port}"], client.fileno()) == (1, 1, -1)


def test_one_look_that_is_high_or_low_is_no_growth() -> None:
    looks = [look(60 * at, memory) for at, memory in enumerate([100, 60, 101, 100, 102, 300, 101])]
    assert [each.line for each in growths(looks, "leader", BOUNDS)] == [
        Line("leader pod-a, 6 min: memory", "100 -> 102 MiB", "at most 134", True),
        Line("leader pod-a, 6 min: threads", "10 -> 10", "at most 14", True),
        Line("leader pod-a, 6 min: open files", "30 -> 30", "at most 42", True),
        Line("leader pod-a, 6 min: sockets", "20 -> 20", "at most 32", True),
    ]


def test_what_grows_from_look_to_look_is_growth() -> None:
    looks = [look(60 * at, threads=10 + at) for at in range(20)]
    assert [(each.name, each.first, each.last) for each in growths(looks, "leader", BOUNDS) if not each.holds] == [
        ("leader pod-a, 19 min: threads", 11, 28)
    ]


def test_the_verdict_names_what_broke_with_its_value_and_its_promise() -> None:
    fine = Line("missing", "0", "0", True)
    fact = Line("records produced", "10")
    lost = Line("missing", "3", "0", False)
    grown = Growth("threads", 10, 28, Bound(more=4)).line
    assert verdict([("plain", [fact, fine]), ("growth", [])]) == ""
    assert verdict([("plain", [fact, lost]), ("ordered", [fine]), ("growth", [grown])]) == (
        "plain: missing is 3, promised is 0; growth: threads is 10 -> 28, promised is at most 14"
    )
