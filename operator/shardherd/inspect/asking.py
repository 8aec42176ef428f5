"""Asks the brokers of groups from where this runs, with each group's own credentials: `doctor --brokers`, `shardherd brokers`.

The second needs no more packages than an operator has, and so runs in its pod, from where the brokers can be reached. Reads
metadata, settings of topics, known producers, and the Secrets that a group names, with the rights of whoever asks. Decides
nothing.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardherd.adapters.kafka.connector import KafkaConnector
from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi
from shardherd.adapters.kubernetes.secrets import contents
from shardherd.controller.declared import InvalidGroupError, declared
from shardherd.core.model.nouns import GroupSettings, GroupSpec
from shardherd.core.planning.listing import identity_of, reads_kinesis
from shardherd.inspect import checks
from shardherd.inspect.answers import Answer, plain
from shardherd.inspect.brokers import Asked, judged
from shardherd.inspect.checks import Check
from shardherd.inspect.cluster import Cluster, connect
from shardherd.inspect.observed import InspectError
from shardherd.inspect.values import json_of, yaml_of
from shardherd.ports import SecretRefusedError, SecretUnavailableError, SourceUnavailableError

if TYPE_CHECKING:
    from argparse import Namespace


INTERRUPTED = 130
"""Exit code: it was ended by Ctrl-C, as the other commands say it."""


class OwnSecrets:
    """SecretReader with the rights of whoever asks."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    async def read(self, namespace: str, name: str) -> Mapping[str, bytes]:
        """See SecretReader."""
        try:
            found = await self._api.acall("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")
        except ApiError as error:
            raise SecretRefusedError(
                f"the Secret {name!r} in namespace {namespace!r}, with which the group calls its brokers, cannot be read with"
                f" your rights ({error})"
            ) from error
        except ApiUnavailableError as error:
            raise SecretUnavailableError(f"Secret {name!r} in namespace {namespace!r} cannot be read now: {error}") from error
        return contents(found)


def check_brokers(api: KubernetesApi, groups: Sequence[Mapping[str, Any]], elsewhere: str = "") -> Iterator[Check]:
    """What the brokers of these groups say, in their order. `elsewhere`: see `judged`."""
    # Groups of another source have no brokers.
    of_kafka = [each for each in groups if not reads_kinesis(each)]
    asked = asyncio.run(ask(KafkaConnector(OwnSecrets(api)), of_kafka))
    return judged(asked, time.time(), elsewhere)


async def ask(connector: KafkaConnector, groups: Sequence[Mapping[str, Any]]) -> tuple[Asked, ...]:
    """The same, unjudged. Closes the connector."""
    try:
        return tuple(await asyncio.gather(*(_one(connector, each) for each in groups)))
    finally:
        await connector.close()


async def _one(connector: KafkaConnector, resource: Mapping[str, Any]) -> Asked:
    identity = identity_of(resource)
    try:
        source = declared(resource).kafka
    except InvalidGroupError as error:
        return Asked(str(identity), refused=str(error))
    behind = resource.get("status", {}).get("lag", {}).get("seconds")
    try:
        found = await connector.survey(GroupSpec(identity, source, GroupSettings(), wanted=0))
    except SourceUnavailableError as error:
        return Asked(str(identity), refused=str(error))
    return Asked(str(identity), found, read_committed=source.read_committed, behind=behind)


def run(options: Namespace) -> int:
    """`shardherd brokers`: ask, print, and say whether anything is bad."""
    try:
        answer = _answer(options)
    except InspectError as error:
        said = plain(str(error), keep="\n")
        print(f"shardherd: {said}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED
    print(_written(answer, options.output).rstrip("\n"))
    return answer.code


def _answer(options: Namespace) -> Answer:
    api, usual = connect(options.kubeconfig, options.context)
    cluster = Cluster(api, options.namespace or usual)
    groups = cluster.groups() if options.group is None else [cluster.resource(options.group)]
    return checks.answered(tuple(check_brokers(api, groups)))


def _written(answer: Answer, output: str) -> str:
    if output == "json":
        return json_of(answer.data)
    if output == "yaml":
        return yaml_of(answer.data, encoding=sys.stdout.encoding or "utf-8")
    return answer.text(wide=output == "wide")


def add_to(commands: Any) -> None:
    """Add `brokers` to the commands that argparse knows."""
    added = commands.add_parser("brokers", help="ask the brokers of groups, from here, how their topics are set")
    added.add_argument("group", nargs="?", help="one group (default: all of the namespace)")
    added.add_argument("-n", "--namespace", help="of the groups (default: the context's, or the pod's)")
    added.add_argument(
        "--kubeconfig", type=Path, help="file (default: KUBECONFIG, then ~/.kube/config, then the pod's account)"
    )
    added.add_argument("--context", help="of the kubeconfig (default: the current one)")
    added.add_argument("-o", "--output", choices=("text", "wide", "json", "yaml"), default="text")
