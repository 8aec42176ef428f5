"""Recorded conversations of every version of the protocol that is served: what a consumer of that version sent, and was told.

The files in `recorded/` are never edited. A new version of the protocol gets a folder of its own.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from shardherd import protocol
from shardherd.coordinator import CoordinatorServer
from shardherd.ports import Caller
from tests.unit.coordinator.rig import IDENTITY, Rig, spec_of

RECORDED = Path(__file__).parent / "recorded"
VERSIONS = sorted(RECORDED.iterdir(), key=lambda folder: int(folder.name[1:]))
CONVERSATIONS = {
    folder.name[1:]: {file.name: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))} for folder in VERSIONS
}

CALLERS = {
    "pod": Caller(
        "demo", "default", "clicks-0", "uid-0", "clicks", "system:serviceaccount:demo:default", group_uid=IDENTITY.uid
    ),
    "admin": Caller("ops", "admin", "", "", "", "system:serviceaccount:ops:admin"),
}


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """A coordinator that serves the group of the conversations: four shards with ten records each, nobody holds them."""
    rig = Rig()
    for partition in range(4):
        rig.kafka.append("t", partition, 10)
    rig.tokens.callers.update(CALLERS)
    rig.tokens.rights.add((CALLERS["admin"].user, "update", "demo", "clicks"))
    await rig.runtime.stop()
    server = CoordinatorServer(rig.ports, host="127.0.0.1", port=0, discovery_interval=0.01, unknown_group_grace=0.0)
    await server.start()
    server.coordination.apply(spec_of())
    await server.lead()
    await rig.becomes(lambda: (view := server.coordination.view(IDENTITY)) is not None and len(view.shards) == 4)
    await rig.becomes(lambda: all(row.checkpoint == 0 for row in server.coordination.views()[IDENTITY].shards))
    yield f"http://127.0.0.1:{server.port}"
    await server.stop()


def contains(answer: Any, recorded: Any, path: str = "reply") -> list[str]:
    """Where the answer lacks something that was recorded. It may have more fields, never others in the place of these."""
    if isinstance(recorded, dict) and isinstance(answer, dict):
        missing = [f"{path}.{key} is missing" for key in recorded if key not in answer]
        return missing + [
            line for key in recorded if key in answer for line in contains(answer[key], recorded[key], f"{path}.{key}")
        ]
    if isinstance(recorded, list) and isinstance(answer, list) and len(recorded) == len(answer):
        return [
            line for at, (a, r) in enumerate(zip(answer, recorded, strict=True)) for line in contains(a, r, f"{path}[{at}]")
        ]
    return [] if answer == recorded else [f"{path} is {answer!r}, was {recorded!r}"]


def test_the_versions_that_are_served_are_recorded() -> None:
    assert list(CONVERSATIONS) == [str(version) for version in protocol.served_versions()]


@pytest.mark.parametrize("version", CONVERSATIONS)
async def test_what_was_recorded_is_answered_as_then(version: str, url: str) -> None:
    for name, exchange in CONVERSATIONS[version].items():
        headers = {"Authorization": f"Bearer {exchange['caller']}", protocol.PROTOCOL_HEADER: version}
        async with (
            aiohttp.ClientSession() as session,
            session.request(exchange["method"], url + exchange["path"], json=exchange.get("body"), headers=headers) as response,
        ):
            text = await response.text()
            answer = json.loads(text) if text else None
        assert (response.status, contains(answer, exchange["reply"])) == (exchange["status"], []), name
