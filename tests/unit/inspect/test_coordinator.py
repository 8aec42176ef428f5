"""Asking a real coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shardherd.core.model.nouns import GroupIdentity
from shardherd.inspect.coordinator import Coordinator
from shardherd.inspect.observed import InspectError
from shardherd.testing import PlayedGroup


@pytest.fixture(scope="module")
def group() -> Iterator[PlayedGroup]:
    with PlayedGroup(shards=2) as group:
        yield group


@pytest.fixture(scope="module")
def coordinator(group: PlayedGroup) -> Coordinator:
    environment = group.environment("played-0")
    return Coordinator(environment["SHARDHERD_COORDINATOR_URL"], Path(environment["SHARDHERD_TOKEN_FILE"]))


def test_it_shows_the_group_to_who_may_look(group: PlayedGroup, coordinator: Coordinator) -> None:
    group.append("records/0", "a", "b")
    group.until("the end is known", lambda: coordinator.view(group.identity).shards[0].end == 2)

    view = coordinator.view(group.identity)

    assert [(row.shard, row.checkpoint, row.end, row.lag_records) for row in view.shards] == [
        ("records/0", 0, 2, 2),
        ("records/1", 0, 0, 0),
    ]
    assert coordinator.health() == "ok"


def test_a_refusal_is_told_with_its_code(coordinator: Coordinator, group: PlayedGroup, tmp_path: Path) -> None:
    forged = tmp_path / "token"
    forged.write_text("forged")
    with pytest.raises(InspectError, match=r"^the coordinator at http://.* refuses \(401 Unauthenticated\): the token is not"):
        replace(coordinator, token_file=forged).view(group.identity)
    with pytest.raises(InspectError, match=r"refuses \(503 CoordinatorUnavailable\): group test/other is not known yet"):
        coordinator.view(GroupIdentity(group.identity.namespace, "other", ""))


def test_what_keeps_it_from_being_asked_is_named(coordinator: Coordinator, group: PlayedGroup, tmp_path: Path) -> None:
    with pytest.raises(InspectError, match=r"^--token-file .*none cannot be read: No such file or directory$"):
        replace(coordinator, token_file=tmp_path / "none").view(group.identity)
    for text in (b"two\nlines", b"", b"\xff\xfe"):
        odd = tmp_path / "odd"
        odd.write_bytes(text)
        with pytest.raises(InspectError, match=r"^--token-file .*odd has no token: one line without spaces is expected$"):
            replace(coordinator, token_file=odd).view(group.identity)
    with pytest.raises(InspectError, match=r"^--api is http://shardherd.example: a token is sent over https only, or to this"):
        replace(coordinator, url="http://shardherd.example").view(group.identity)
    with pytest.raises(InspectError, match=r"^the coordinator does not answer at http://127.0.0.1:1: .*; check --api"):
        replace(coordinator, url="http://127.0.0.1:1").view(group.identity)
    with pytest.raises(
        InspectError, match=r"^the coordinator does not answer at https://.*; check --api, --ca-file and --api-name"
    ):
        Coordinator(coordinator.url.replace("http", "https"), coordinator.token_file, tmp_path / "no.crt", "x").health()
