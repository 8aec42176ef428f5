"""What `shardherd local status` prints: groups, consumers and shards, and the last events. Reads; decides nothing."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable, Mapping
from http.client import HTTPException
from typing import Any

from shardherd.adapters.local.events import events
from shardherd.adapters.local.identity import SignedTokens, holder, secret_of
from shardherd.adapters.local.objects import GROUP, GROUP_LABEL, POD, Json, Objects
from shardherd.core.planning.listing import GROUP_HEADS, group_row, table
from shardherd.local.operator import API, HOST, METRICS, PAGE
from shardherd.local.state import State
from shardherd.protocol import PROTOCOL_HEADER, PROTOCOL_VERSION

EVENTS = 8
"""The last of them are shown."""

TIMEOUT = 2.0
"""Seconds for an answer of the coordinator."""

Consumer = tuple[str, str, str]
"""Its namespace, its group, its name."""


def status(state: State, objects: Objects) -> str:
    """The whole report."""
    pid = holder(state.lock)
    groups, pods = objects.all(GROUP), objects.all(POD)
    held: Mapping[Consumer, int] = {} if pid is None else _held(state, objects, groups)
    names = Counter(pod["metadata"]["name"] for pod in pods)
    lines = [
        "no operator runs" if pid is None else f"the operator (process {pid}) leads",
        *([] if pid is None else [_places(objects)]),
        "",
        *table(GROUP_HEADS, map(group_row, groups)),
        "",
        *table(
            ("CONSUMER", "PROCESS", "STATE", "READY", "RESTARTS", "SHARDS", "METRICS"),
            (_pod(state, pod, held, alone=names[pod["metadata"]["name"]] == 1) for pod in pods),
        ),
        "",
        *table(
            ("LAST SEEN", "GROUP", "COUNT", "EVENT", "MESSAGE"),
            (
                (f"{max(0.0, time.time() - event.last):.0f} s ago", event.group, event.count, event.reason, event.message)
                for event in events(objects.database)[-EVENTS:]
            ),
        ),
    ]
    return "\n".join(lines) + "\n"


def _places(objects: Objects) -> str:
    api, metrics, page = map(objects.database.fact, (API, METRICS, PAGE))
    return f"coordinator http://{HOST}:{api}, page http://{HOST}:{page}/, metrics http://{HOST}:{metrics}/metrics"


def shards(state: State, objects: Objects, namespace: str, name: str) -> list[Json] | None:
    """Every shard of a group as the coordinator shows it; None while it cannot."""
    answer = asked(state, objects, f"/v1/namespaces/{namespace}/consumergroups/{name}/shards")
    found: list[Json] | None = None if answer is None else json.loads(answer)
    return found


def asked(state: State, objects: Objects, path: str) -> bytes | None:
    """What the coordinator answers to its owner at this path; None while it cannot."""
    token = SignedTokens(secret_of(state.folder), objects).of_user()
    address = f"http://{HOST}:{objects.database.fact(API)}{path}"
    headers = {"Authorization": f"Bearer {token}", PROTOCOL_HEADER: str(PROTOCOL_VERSION)}
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=TIMEOUT) as answer:
            found: bytes = answer.read()
    except (OSError, HTTPException) as error:  # also of an operator that ends in the middle of its answer
        if isinstance(error, urllib.error.HTTPError) and error.code not in (404, 503):
            raise
        return None
    return found


def _held(state: State, objects: Objects, groups: Iterable[Json]) -> Counter[Consumer]:
    """How many shards each consumer holds; of a group that is not loaded yet nobody holds any."""
    found: Counter[Consumer] = Counter()
    for group in groups:
        metadata = group["metadata"]
        known = shards(state, objects, metadata["namespace"], metadata["name"]) or []
        found.update((metadata["namespace"], metadata["name"], shard["holder"]) for shard in known if shard.get("holder"))
    return found


def _pod(state: State, pod: Json, held: Mapping[Consumer, int], *, alone: bool) -> tuple[object, ...]:
    """Its row; `alone`: no other one has its name."""
    metadata = pod["metadata"]
    container = state.machine("", {}).container(metadata["uid"])
    running = container.running()
    container_status: dict[str, Any] = next(iter(pod.get("status", {}).get("containerStatuses", ())), {})
    condition = "draining" if "deletionTimestamp" in metadata else _state(container_status)
    port = container.run / "port"
    reads = held.get((metadata["namespace"], metadata.get("labels", {}).get(GROUP_LABEL, ""), metadata["name"]), 0)
    return (
        metadata["name"] if alone else f"{metadata['namespace']}/{metadata['name']}",
        "-" if running is None else running.driver.pid,
        condition,
        "yes" if container_status.get("ready") else "no",
        container_status.get("restartCount", 0),
        reads,
        f"http://{HOST}:{port.read_text()}/metrics" if running is not None and port.exists() else "-",
    )


def _state(container_status: Mapping[str, Any]) -> str:
    state = container_status.get("state", {})
    if "waiting" in state:
        return str(state["waiting"]["reason"])
    return next(iter(state), "starting")
