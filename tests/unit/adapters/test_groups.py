"""Whether there is a ConsumerGroup: what the API server is asked, how often, and what its silence means."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi
from shardherd.adapters.kubernetes.groups import KEPT, LASTS, KubernetesGroups
from shardherd.adapters.memory.clock import SimulatedClock
from shardherd.core.model.errors import CoordinatorUnavailableError

PATH = "/apis/shardherd.dev/v1alpha1/namespaces/demo/consumergroups"


class PlayedGroups:
    """As much of an API server as the question needs."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)
        self.going: set[str] = set()
        self.asked: list[str] = []
        self.fails: Exception | None = None

    async def acall(self, method: str, path: str, _body: object = None, **_: Any) -> Any:
        self.asked.append(f"{method} {path}")
        await asyncio.sleep(0)
        if self.fails is not None:
            raise self.fails
        name = path.removeprefix(f"{PATH}/")
        if name not in self.names:
            raise ApiError("not found", 404, "NotFound")
        return {"metadata": {"name": name, **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if name in self.going else {})}}


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


def groups_of(played: PlayedGroups, clock: SimulatedClock) -> KubernetesGroups:
    return KubernetesGroups(cast(KubernetesApi, played), clock)


async def test_a_group_is_there_or_not_as_the_api_server_says(clock: SimulatedClock) -> None:
    played = PlayedGroups("clicks", "goes")
    played.going = {"goes"}
    groups = groups_of(played, clock)
    found = {name: await groups.exists("demo", name) for name in ("clicks", "goes", "orders")}
    assert found == {"clicks": True, "goes": False, "orders": False}


async def test_however_many_ask_the_api_server_is_asked_once_in_a_while(clock: SimulatedClock) -> None:
    played = PlayedGroups("clicks")
    groups = groups_of(played, clock)
    assert await asyncio.gather(*(groups.exists("demo", "clicks") for _ in range(50))) == [True] * 50
    assert await groups.exists("demo", "clicks")
    assert played.asked == [f"GET {PATH}/clicks"]
    played.names.clear()
    clock.advance(LASTS)
    assert not await groups.exists("demo", "clicks")
    assert played.asked == [f"GET {PATH}/clicks"] * 2


async def test_whoever_hangs_up_keeps_the_others_from_no_answer(clock: SimulatedClock) -> None:
    groups = groups_of(PlayedGroups("clicks"), clock)
    first = asyncio.create_task(groups.exists("demo", "clicks"))
    second = asyncio.create_task(groups.exists("demo", "clicks"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second


@pytest.mark.parametrize("error", [ApiUnavailableError("timed out"), ApiError("overloaded", 503, "ServiceUnavailable")])
async def test_what_the_api_server_does_not_tell_is_not_taken_for_no(error: Exception, clock: SimulatedClock) -> None:
    played = PlayedGroups("clicks")
    played.fails = error
    with pytest.raises(CoordinatorUnavailableError, match=r"whether there is a group demo/clicks is not known: .*; ask again"):
        await groups_of(played, clock).exists("demo", "clicks")


async def test_where_this_operator_may_read_no_groups_there_is_none_that_it_serves(clock: SimulatedClock) -> None:
    played = PlayedGroups("clicks")
    played.fails = ApiError("no right", 403, "Forbidden")
    assert not await groups_of(played, clock).exists("demo", "clicks")


async def test_names_that_were_asked_for_long_ago_are_forgotten(clock: SimulatedClock) -> None:
    groups = groups_of(PlayedGroups(), clock)
    for number in range(KEPT):
        await groups.exists("demo", f"no-{number}")
    clock.advance(LASTS)
    await groups.exists("demo", "clicks")
    assert len(groups._asked) == 1
