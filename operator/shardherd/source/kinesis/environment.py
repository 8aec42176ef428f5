"""Which stream of Kinesis a pod of a group reads, from environment variables that the controller sets.

Read by a worker (`worker.place`) and by a Spark driver (`spark.pod`). It opens no connection; the files of access keys are read
when a client is made.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardherd.source.kinesis.client import StreamAccess, keys_in

STREAM = "SHARDHERD_KINESIS_STREAM"
REGION = "SHARDHERD_KINESIS_REGION"
ENDPOINT = "SHARDHERD_KINESIS_ENDPOINT"
CREDENTIALS = "SHARDHERD_KINESIS_CREDENTIALS"


def stream_settings(environment: Mapping[str, str]) -> dict[str, str] | None:
    """How the stream is reached, as text: stream, region, endpoint and credentials, which may be empty.

    None where the variables name no stream. Raises ValueError that names what is missing.
    """
    stream = environment.get(STREAM, "")
    if not stream:
        return None
    region = environment.get(REGION, "")
    if not region:
        raise ValueError(f"{REGION} is not set, and no region given: it is that of the stream that {STREAM} names, {stream}")
    return {
        "stream": stream,
        "region": region,
        "endpoint": environment.get(ENDPOINT, ""),
        "credentials": environment.get(CREDENTIALS, ""),
    }


def stream_access(environment: Mapping[str, str]) -> StreamAccess | None:
    """The same for who asks Kinesis."""
    if (found := stream_settings(environment)) is None:
        return None
    keys = keys_in(found["credentials"]) if found["credentials"] else None
    return StreamAccess(found["stream"], found["region"], found["endpoint"], keys)
