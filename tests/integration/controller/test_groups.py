"""The client's groups on a real API server: what a program creates is what kubectl shows, and refusals are the server's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import config

from shardherd.client.groups import ConsumerGroups
from shardherd.core.model.errors import InvalidRequestError, UnknownGroupError
from tests.harness.cluster import Names
from tests.integration.controller.bench import ControllerBench

SPEC: dict[str, Any] = {
    "source": {"kafka": {"bootstrapServers": "kafka:9092", "topics": ["clicks"]}},
    "application": {"image": "example/clicks:1", "mainApplicationFile": "/opt/app/app.py"},
}


@pytest.fixture
def groups(kubeconfig: Path) -> ConsumerGroups:
    loader: Any = config  # the client has no types
    return ConsumerGroups(loader.new_client_from_config(str(kubeconfig)))


@pytest.fixture
def name(names: Names, groups: ConsumerGroups, bench: ControllerBench) -> Iterator[str]:
    name = names.fresh("made")
    yield name
    if any(group.name == name for group in groups.list(bench.namespace)):
        groups.delete(bench.namespace, name)


def test_a_group_lives_from_its_creation_to_its_deletion(groups: ConsumerGroups, bench: ControllerBench, name: str) -> None:
    made = groups.create(bench.namespace, name, SPEC | {"ordered": True, "sessionTimeout": "20s"})
    assert (made.name, made.ordered, made.session_timeout, made.topics) == (name, True, "20s", ("clicks",))

    changed = groups.update(bench.namespace, name, ordered=False, session_timeout="30s")
    assert (changed.uid, changed.ordered, changed.session_timeout) == (made.uid, False, "30s")
    assert groups.get(bench.namespace, name) == changed
    assert changed in groups.list(bench.namespace, topic="clicks")
    assert changed not in groups.list(bench.namespace, topic="views")

    groups.delete(bench.namespace, name)
    with pytest.raises(UnknownGroupError, match="not found"):
        groups.get(bench.namespace, name)


def test_two_groups_of_one_name_are_refused(groups: ConsumerGroups, bench: ControllerBench, name: str) -> None:
    groups.create(bench.namespace, name, SPEC)
    with pytest.raises(InvalidRequestError, match="already exists"):
        groups.create(bench.namespace, name, SPEC)


def test_a_wrong_field_is_refused_in_the_servers_words(groups: ConsumerGroups, bench: ControllerBench, name: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"spec.sessionTimeout"):
        groups.create(bench.namespace, name, SPEC | {"sessionTimeout": "1s"})
