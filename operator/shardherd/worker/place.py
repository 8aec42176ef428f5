"""Who a worker is and whom it talks to: by the environment of its pod, or by what the program says in its place.

Called by `worker`. It decides nothing but what is missing.
"""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardherd.core.model.errors import InvalidRequestError
from shardherd.source.kinesis.client import StreamAccess
from shardherd.source.kinesis.environment import CREDENTIALS, ENDPOINT, REGION, STREAM, stream_access
from shardherd.source.security.environment import (
    BOOTSTRAP,
    ISOLATION,
    SECURITY,
    KafkaAccess,
    read_access,
)
from shardherd.source.security.kafka_settings import KafkaSettingError, check, security_of


@dataclass(frozen=True, slots=True)
class Place:
    """`environment` is that of a pod of the group, for `consumer_of_pod`; `zone` is where this process runs.

    `kinesis` is the stream that is read in the place of Kafka, if one is.
    """

    environment: Mapping[str, str]
    kafka: KafkaAccess
    zone: str
    kinesis: StreamAccess | None = None


def place(
    inherited: Mapping[str, str],
    *,
    bootstrap: str | None = None,
    kafka: Mapping[str, str] | None = None,
    stream: str | None = None,
    region: str | None = None,
    endpoint: str | None = None,
    credentials: Path | str | None = None,
    coordinator: str | None = None,
    group: str | None = None,
    group_uid: str | None = None,
    consumer: str | None = None,
    pod_uid: str | None = None,
    token_file: Path | str | None = None,
    ca_file: Path | str | None = None,
) -> Place:
    """What the environment says, but for what is given. `group` is `namespace/name`; `kafka` are settings by Kafka's names;
    `stream` with its `region`, and perhaps an `endpoint` and a folder with `credentials`, is one of Kinesis in its place.

    Without a pod a consumer is named as its host, and each run of it is one of a new pod. Raises InvalidRequestError that
    names what is missing or wrong.
    """
    given: dict[str, Any] = {
        "SHARDHERD_COORDINATOR_URL": coordinator,
        "SHARDHERD_GROUP_UID": group_uid,
        "SHARDHERD_CONSUMER": consumer,
        "SHARDHERD_POD_UID": pod_uid,
        "SHARDHERD_TOKEN_FILE": token_file,
        "SHARDHERD_COORDINATOR_CA_FILE": ca_file,
        BOOTSTRAP: bootstrap,
        STREAM: stream,
        REGION: region,
        ENDPOINT: endpoint,
        CREDENTIALS: credentials,
    }
    if group is not None:
        namespace, slash, name = group.partition("/")
        if not slash or not namespace or not name:
            raise InvalidRequestError(f"group must be namespace/name, not {group!r}")
        given |= {"SHARDHERD_NAMESPACE": namespace, "SHARDHERD_GROUP": name}
    environment = {
        "SHARDHERD_CONSUMER": socket.gethostname(),
        "SHARDHERD_POD_UID": str(uuid.uuid4()),
        "SHARDHERD_START": "1",
        **inherited,
        **{name: str(value) for name, value in given.items() if value is not None},
        **_kafka(kafka or {}),
    }
    try:
        access, kinesis = read_access(environment), stream_access(environment)
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error
    if access.bootstrap_servers and kinesis is not None:
        raise InvalidRequestError(
            f"a worker reads Kafka or Kinesis, not both: Kafka is at {access.bootstrap_servers}, and {STREAM} is"
            f" {kinesis.stream}; leave out one of them"
        )
    if not access.bootstrap_servers and kinesis is None:
        raise InvalidRequestError(
            f"nobody has said where Kafka is: give bootstrap, or set {BOOTSTRAP}; for Kinesis give stream, or set {STREAM}"
        )
    return Place(environment, access, environment.get("SHARDHERD_ZONE", ""), kinesis)


def _kafka(settings: Mapping[str, str]) -> dict[str, str]:
    """The variables that say the same as these settings of Kafka."""
    rest = dict(settings)
    variables = {}
    if (servers := rest.pop("bootstrap.servers", None)) is not None:
        variables[BOOTSTRAP] = servers
    if (level := rest.pop("isolation.level", None)) is not None:
        variables[ISOLATION] = level
    if rest:
        try:
            for name in rest:
                check(name)
            variables[SECURITY] = json.dumps(dict(security_of(rest).as_dict()))
        except KafkaSettingError as error:
            raise InvalidRequestError(str(error)) from error
    return variables
