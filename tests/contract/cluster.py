"""What every Leadership, TokenReviewer and EventRecorder must do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

import pytest

from shardherd.core.model.nouns import GroupIdentity
from shardherd.ports import Caller, Clock, EventRecorder, Leadership, ReviewUnavailableError, TokenReviewer


@dataclass
class LeadershipLab:
    """A leadership, its clock, and what others may do."""

    leadership: Leadership
    clock: Clock
    hold_by_another: Callable[[], Awaitable[None]]
    let_go_by_another: Callable[[], Awaitable[None]]
    take_away: Callable[[], Awaitable[None]]


class LeadershipContract:
    """A subclass gives the fixture `lab`."""

    async def test_who_has_acquired_is_certain_for_a_while(self, lab: LeadershipLab) -> None:
        await lab.leadership.acquire()

        assert lab.leadership.deadline() > lab.clock.now()
        await lab.leadership.release()

    async def test_acquiring_waits_until_the_other_lets_go(self, lab: LeadershipLab) -> None:
        await lab.hold_by_another()
        acquiring = asyncio.create_task(lab.leadership.acquire())
        done, _ = await asyncio.wait([acquiring], timeout=0.3)
        assert not done

        await lab.let_go_by_another()
        await asyncio.wait_for(acquiring, 60)

        assert lab.leadership.deadline() > lab.clock.now()
        await lab.leadership.release()

    async def test_what_is_taken_away_is_lost_for_good(self, lab: LeadershipLab) -> None:
        await lab.leadership.acquire()

        await lab.take_away()
        await asyncio.wait_for(lab.leadership.lost(), 60)

        assert lab.leadership.deadline() <= lab.clock.now()
        await lab.leadership.release()


class TokensLab(Protocol):
    """A reviewer and tokens for it."""

    reviewer: TokenReviewer
    valid: str
    caller: Caller

    def cut_off(self) -> None:
        """The reviewer's other side answers no more."""
        ...


class TokensContract:
    """A subclass gives the fixture `lab`."""

    async def test_a_valid_token_tells_whose_it_is(self, lab: TokensLab) -> None:
        assert await lab.reviewer.review(lab.valid) == lab.caller

    async def test_a_forged_token_is_nobodys(self, lab: TokensLab) -> None:
        assert await lab.reviewer.review(lab.valid[:-4] + "AAAA") is None

    async def test_garbage_is_nobodys(self, lab: TokensLab) -> None:
        assert await lab.reviewer.review("not-a-token") is None

    async def test_a_review_that_cannot_be_made_is_no_refusal(self, lab: TokensLab) -> None:
        lab.cut_off()

        with pytest.raises(ReviewUnavailableError):
            await lab.reviewer.review(lab.valid)


@dataclass
class EventsLab:
    """A recorder, a group, and how to see what was recorded: (reason, message, is a warning, how often)."""

    recorder: EventRecorder
    group: GroupIdentity
    recorded: Callable[[], Awaitable[list[tuple[str, str, bool, int]]]]
    flush: Callable[[], Awaitable[None]] = field(default=lambda: asyncio.sleep(0))


class EventsContract:
    """A subclass gives the fixture `lab`."""

    async def test_events_are_seen_with_reason_and_message(self, lab: EventsLab) -> None:
        lab.recorder.record(lab.group, "Rebalanced", "3 shards moved")
        lab.recorder.record(lab.group, "SourceUnavailable", "no broker answers", warning=True)
        await lab.flush()

        assert sorted(await lab.recorded()) == [
            ("Rebalanced", "3 shards moved", False, 1),
            ("SourceUnavailable", "no broker answers", True, 1),
        ]

    async def test_the_same_event_again_is_counted(self, lab: EventsLab) -> None:
        for _ in range(3):
            lab.recorder.record(lab.group, "Rebalanced", "3 shards moved")
        await lab.flush()

        assert await lab.recorded() == [("Rebalanced", "3 shards moved", False, 3)]
