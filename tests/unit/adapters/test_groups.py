"""Whether there is a ConsumerGroup: what the API server is asked, how often, and what its silence means."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi
from shardherd.adapters.kubernetes.groups import AT_ONCE, KEPT, LASTS, KubernetesGroups
from shardherd.core.model.errors import CoordinatorUnavailableError
from tests.harness.simulated_clock import SimulatedClock

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


@pytest.mark.parametrize("error", [ApiUnavailableError("timed out"), ApiError("no right", 403, "Forbidden")])
async def test_what_the_api_server_does_not_tell_is_not_taken_for_no(error: Exception, clock: SimulatedClock) -> None:
    played = PlayedGroups("clicks")
    played.fails = error
    with pytest.raises(CoordinatorUnavailableError, match=r"whether there is a group demo/clicks is not known: .*; ask again"):
        await groups_of(played, clock).exists("demo", "clicks")


async def test_of_namespaces_that_are_not_served_nobody_is_asked(clock: SimulatedClock) -> None:
    played = PlayedGroups("clicks")
    groups = KubernetesGroups(cast(KubernetesApi, played), clock, ("other",))
    assert (await groups.exists("demo", "clicks"), played.asked) == (False, [])


async def test_only_so_many_names_are_asked_about_at_a_time(clock: SimulatedClock) -> None:
    played = PlayedGroups(*(f"group-{number}" for number in range(AT_ONCE + 1)))
    groups = groups_of(played, clock)
    asked = (groups.exists("demo", f"group-{number}") for number in range(AT_ONCE + 1))
    *found, refused = await asyncio.gather(*asked, return_exceptions=True)
    assert (found, isinstance(refused, CoordinatorUnavailableError), len(played.asked)) == ([True] * AT_ONCE, True, AT_ONCE)
    assert await groups.exists("demo", f"group-{AT_ONCE}")


async def test_names_that_were_asked_for_long_ago_are_forgotten(clock: SimulatedClock) -> None:
    groups = groups_of(PlayedGroups(), clock)
    for number in range(KEPT):
        await groups.exists("demo", f"no-{number}")
    clock.advance(LASTS)
    await groups.exists("demo", "clicks")
    assert len(groups._answers) == 1
