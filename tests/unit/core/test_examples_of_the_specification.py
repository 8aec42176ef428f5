"""The specification's own examples of balance, with its numbers: who holds how many shards, and which of them move."""

from __future__ import annotations

from collections import Counter

import pytest

from shardherd.core.model.nouns import ConsumerId
from tests.builders import Play, holding, info, moved, spec, started, topic


def held(play: Play) -> dict[str, str]:
    """What every consumer holds, one figure a shard."""
    return {str(view.consumer): "".join(sorted(play.held_by(view.consumer))) for view in play.view.consumers}


def test_ten_shards_three_consumers_hold_3_3_4() -> None:
    assert sorted(started(10, 3).counts().values()) == [3, 3, 4]


def test_crash_moves_only_the_dead_consumers_shards() -> None:
    play = holding(A="012", B="345", C="6789")
    before = play.holders()
    play.die("A")
    assert moved(before, play.holders()) == {"0", "1", "2"}
    assert held(play) == {"B": "01345", "C": "26789"}

    after_crash = play.holders()
    play.run("A", start=2)
    play.settle("A", "B", "C")
    assert held(play) == {"A": "589", "B": "0134", "C": "267"}
    assert moved(after_crash, play.holders()) == {"5", "8", "9"}


def test_a_crash_that_only_silence_tells_moves_the_same_shards() -> None:
    play = holding(A="012", B="345", C="6789")
    before = play.holders()
    play.wait(50, ["B", "C"])
    assert moved(before, play.holders()) == {"0", "1", "2"}
    assert held(play) == {"B": "01345", "C": "26789"}


def test_two_join_three_each_hold_two() -> None:
    play = holding(A="012", B="345", C="6789")
    before = play.holders()
    play.beat("D", "E")
    play.settle("A", "B", "C", "D", "E")
    assert held(play) == {"A": "01", "B": "34", "C": "67", "D": "59", "E": "28"}
    assert Counter(before[number] for number in moved(before, play.holders())) == {"A": 1, "B": 1, "C": 2}
    assert play.view.moves == 4


@pytest.mark.parametrize("ordered", [False, True])
def test_a_split_rebalances_on_the_newest_shards(ordered: bool) -> None:
    play = holding(A="01", B="23", settings={"ordered": ordered})
    play.discover((info("0", open=False), info("1"), info("2"), info("3"), info("4", parents="0"), info("5", parents="0")))
    play.settle("A", "B")
    # In order the children wait for their parent; it is still read, so nothing else has changed.
    assert held(play) == ({"A": "01", "B": "23"} if ordered else {"A": "014", "B": "235"})
    play.checkpoint("A", "0", 100)
    play.settle("A", "B")
    assert held(play) == {"A": "14", "B": "235"}
    assert play.states() == {"0": "OVER"} | dict.fromkeys("12345", "ALREADY_ALLOC")


def test_a_merge_rebalances_on_the_newest_shards() -> None:
    play = holding(A="01", B="23", settings={"ordered": True})
    play.discover((info("0", open=False), info("1"), info("2", open=False), info("3"), info("4", parents="02")))
    play.settle("A", "B")
    assert play.states()["4"] == "WAIT"
    play.checkpoint("A", "0", 100)
    play.settle("A", "B")
    assert (held(play), play.states()["4"]) == ({"A": "1", "B": "23"}, "WAIT")
    play.checkpoint("B", "2", 100)
    play.settle("A", "B")
    assert held(play) == {"A": "14", "B": "3"}
    assert play.view.moves == 0


def test_when_a_read_only_shard_is_consumed_the_rest_is_rebalanced() -> None:
    play = holding(A="01", B="23")
    play.discover((info("0", open=False), info("1", open=False), info("2"), info("3")))
    play.checkpoint("A", "0", 100)
    play.settle("A", "B")
    assert held(play) == {"A": "1", "B": "23"}
    play.checkpoint("A", "1", 100)
    play.settle("A", "B")
    assert held(play) == {"A": "3", "B": "2"}
    assert play.view.moves == 1


def test_two_groups_share_a_stream_without_effect() -> None:
    one, two = Play(spec(2, assignor="Range")), Play(spec(1, assignor="Range"))
    for play, names in ((one, ("A", "B")), (two, ("C",))):
        play.discover(topic(4))
        play.settle(*names)
    assert held(one) == {"A": "01", "B": "23"}
    assert held(two) == {"C": "0123"}

    one.die("A")
    one.settle("B")
    assert (held(one), held(two)) == ({"B": "0123"}, {"C": "0123"})


def test_two_sticky_groups_share_a_stream_without_effect() -> None:
    one, two = Play(spec(2)), Play(spec(1))
    for play, names in ((one, ("A", "B")), (two, ("C",))):
        play.discover(topic(4))
        play.settle(*names)
    assert (one.counts(), two.counts()) == ({"A": 2, "B": 2}, {"C": 4})
    one.die("A")
    one.settle("B")
    assert (one.counts(), two.counts()) == ({"B": 4}, {"C": 4})


def test_eleven_consumers_are_taken_in_the_order_of_their_numbers() -> None:
    play = started(11, 11, assignor="Range")
    assert play.holders() == {str(number): ConsumerId(f"g-{number}") for number in range(11)}
