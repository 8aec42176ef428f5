"""The order in which results of asynchronous calls are emitted: Flink's ordered and unordered queues."""

from __future__ import annotations

from typing import Any

import pytest

from shardherd.core.consumer.awaiting import Awaiting, Call, Watermark


def emitted(queue: Awaiting[str, str]) -> list[Any]:
    """All that is ready now: results, and the times of watermarks."""
    found: list[Any] = []
    while (each := queue.emit()) is not None:
        found += [f"wm{each.time}"] if isinstance(each, Watermark) else each.results
    return found


def begun(queue: Awaiting[str, str], *names: str) -> dict[str, Call[str, str]]:
    """Calls and watermarks in this order."""
    calls = {}
    for name in names:
        if name.startswith("wm"):
            queue.watermark(Watermark(int(name[2:])))
        else:
            calls[name] = queue.begin(name)
    return calls


def test_segments_keep_watermark_order() -> None:
    queue: Awaiting[str, str] = Awaiting(10, ordered=False)
    calls = begun(queue, "r1", "r2", "wm1", "r3", "wm2")
    for name in ("r3", "r2", "r1"):
        queue.finish(calls[name], [name])
    assert emitted(queue) == ["r2", "r1", "wm1", "r3", "wm2"]


def test_ordered_a_finished_one_waits_behind_a_slow_one() -> None:
    queue: Awaiting[str, str] = Awaiting(10, ordered=True)
    calls = begun(queue, "r1", "r2", "wm1", "r3", "wm2")
    for name in ("r3", "r2"):
        queue.finish(calls[name], [name])
    assert emitted(queue) == []
    queue.finish(calls["r1"], ["r1"])
    assert emitted(queue) == ["r1", "r2", "wm1", "r3", "wm2"]


def test_without_watermarks_there_is_one_segment() -> None:
    queue: Awaiting[str, str] = Awaiting(10, ordered=False)
    calls = begun(queue, "r1", "r2", "r3")
    queue.finish(calls["r3"], ["r3"])
    assert emitted(queue) == ["r3"]
    queue.finish(calls["r1"], ["r1"])
    assert emitted(queue) == ["r1"]


@pytest.mark.parametrize("ordered", [True, False])
def test_a_call_has_none_one_or_many_results_and_only_once(ordered: bool) -> None:
    queue: Awaiting[str, str] = Awaiting(10, ordered=ordered)
    calls = begun(queue, "none", "many")
    assert queue.finish(calls["none"], [])
    assert queue.finish(calls["many"], ["a", "b"])
    assert not queue.finish(calls["many"], ["after a result of its timeout"])
    assert (emitted(queue), queue.finish(calls["none"], ["late"]), emitted(queue)) == (["a", "b"], False, [])


@pytest.mark.parametrize("ordered", [True, False])
def test_at_capacity_the_input_waits_until_something_is_emitted_and_watermarks_take_a_place(ordered: bool) -> None:
    queue: Awaiting[str, str] = Awaiting(3, ordered=ordered)
    calls = begun(queue, "r1", "wm1", "r2")
    with pytest.raises(ValueError, match="3 calls are not emitted, which is the capacity"):
        queue.begin("r3")
    queue.finish(calls["r1"], ["r1"])
    assert not queue.room, "it is done, and not emitted"
    assert queue.emit() is calls["r1"]
    assert (queue.room, len(queue)) == (True, 2)


@pytest.mark.parametrize("ordered", [True, False])
def test_what_is_in_flight_is_what_runs_again_after_a_restart(ordered: bool) -> None:
    queue: Awaiting[str, str] = Awaiting(9, ordered=ordered)
    calls = begun(queue, "r1", "r2", "wm1", "r3", "r4")
    queue.finish(calls["r3"], ["r3"])
    queue.finish(calls["r1"], ["r1"])
    queue.emit()
    assert sorted(queue.in_flight()) == ["r2", "r3", "r4"]


@pytest.mark.parametrize("ordered", [True, False])
def test_a_call_that_failed_is_dropped_and_holds_up_nobody(ordered: bool) -> None:
    queue: Awaiting[str, str] = Awaiting(9, ordered=ordered)
    calls = begun(queue, "r1", "wm1", "r2")
    queue.finish(calls["r2"], ["r2"])
    queue.drop(calls["r1"])
    queue.drop(calls["r1"])
    assert (emitted(queue), len(queue), queue.finish(calls["r1"], ["r1"])) == (["wm1", "r2"], 0, False)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_watermark_waits_for_a_call_that_failed_until_another_of_its_element_is_emitted(ordered: bool) -> None:
    queue: Awaiting[str, str] = Awaiting(9, ordered=ordered)
    calls = begun(queue, "r1", "r2", "wm1", "r3")
    queue.fail(calls["r1"])
    queue.finish(calls["r2"], ["r2"])
    queue.finish(calls["r3"], ["r3"])
    assert (emitted(queue), len(queue)) == (["r2"], 2)
    again = queue.begin("r1", after=calls["r1"])
    assert (emitted(queue), len(queue)) == ([], 3)
    queue.finish(again, ["r1"])
    assert (emitted(queue), len(queue)) == (["r1", "wm1", "r3"], 0)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_watermark_goes_on_once_what_failed_is_dropped(ordered: bool) -> None:
    queue: Awaiting[str, str] = Awaiting(9, ordered=ordered)
    calls = begun(queue, "r1", "wm1", "r2")
    queue.finish(calls["r2"], ["r2"])
    queue.fail(calls["r1"])
    assert emitted(queue) == []
    queue.drop(calls["r1"])
    assert (emitted(queue), len(queue)) == (["wm1", "r2"], 0)


def test_of_watermarks_with_nothing_between_them_the_last_is_left_and_takes_one_place() -> None:
    queue: Awaiting[str, str] = Awaiting(5, ordered=False)
    calls = begun(queue, "r1", "wm1", "r2", "wm2")
    queue.fail(calls["r2"])
    queue.drop(calls["r2"])
    assert len(queue) == 2
    queue.finish(calls["r1"], ["r1"])
    assert (emitted(queue), len(queue)) == (["r1", "wm2"], 0)


def test_a_call_whose_results_could_not_be_emitted_keeps_its_watermark_back() -> None:
    queue: Awaiting[str, str] = Awaiting(9, ordered=False)
    calls = begun(queue, "r1", "wm1")
    queue.finish(calls["r1"], ["r1"])
    assert queue.emit() is calls["r1"]
    queue.fail(calls["r1"])
    assert (queue.emit(), len(queue)) == (None, 1)
    queue.finish(queue.begin("r1", after=calls["r1"]), ["r1"])
    assert emitted(queue) == ["r1", "wm1"]


def test_a_capacity_must_be_positive() -> None:
    with pytest.raises(ValueError, match="capacity must be 1 or more, not 0"):
        Awaiting(0, ordered=True)
