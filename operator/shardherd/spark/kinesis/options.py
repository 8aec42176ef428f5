"""The options of a query that reads Kinesis, by itself or in a group: their table, which go together, what is wrong with them.

`source` asks whether a query reads Kinesis, and how; the readers read the options. Names are those of the Kafka side where the
meaning is the same, and are not case-sensitive. It asks nobody anything.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardherd.source.kinesis.client import StreamAccess, keys_in
from shardherd.source.kinesis.environment import STREAM as STREAM_VARIABLE
from shardherd.source.kinesis.pacing import WHOLE, Pace, Share
from shardherd.source.kinesis.shared_pacing import pace_of
from shardherd.source.reading.start_positions import whole_number
from shardherd.source.values.value_format import OPTIONS as VALUE_OPTIONS
from shardherd.source.values.value_format import ValueFormat
from shardherd.spark.flow import Limits
from shardherd.spark.option_table import ALL, ALONE, OPTIONS, STREAMS, Mode, Option
from shardherd.spark.options import OptionError, Settings, duration, flag, value_format, whole

STREAM_OPTION = "kinesis.stream"

EARLIEST, LATEST = "earliest", "latest"

SPAN = 30.0
"""Seconds of a shard's records that a micro-batch has at most: up to 30 MB of each shard, as fast as it can be written."""

_OF_KAFKA = {option.name: option for option in OPTIONS}

KINESIS_OPTIONS = (
    Option(
        STREAM_OPTION, ALONE, "",
        "The stream: its name or its ARN. With it Kinesis is read, and no operator is needed.",
    ),
    Option("kinesis.region", ALONE, "", "The region of the stream, such as `eu-central-1`. An ARN names it too."),
    Option(
        "kinesis.endpoint", ALONE, "AWS's own",
        "A URL in place of it: of a VPC endpoint, or of a service that plays Kinesis.",
    ),
    Option(
        "kinesis.credentials", ALONE, "AWS finds who the process is",
        "A folder with the files `accessKeyId`, `secretAccessKey` and, for a role, `sessionToken`, the same on every machine: "
        "a mounted Secret. They are read again when AWS refuses them.",
    ),
    Option(
        "startingOffsets", ALONE, "`latest`; in a batch `earliest`",
        "`earliest` or `latest`. A stream uses it once, when it has no checkpoint yet.",
    ),
    Option(
        "startingTimestamp", ALONE, "",
        "Start at the first record that arrived at or after this time, in milliseconds since 1970; at the end where there is "
        "none.",
    ),
    Option(
        "kinesis.maxSpanPerTrigger", STREAMS, "`30s`; in a group `10s`",
        "How much time a micro-batch goes on in each shard at most: a number with `ms`, `s`, `m` or `h`. A shard takes 1 MB "
        "and 1,000 records a second, so this bounds both.",
    ),
    Option(
        "maxOffsetsPerTrigger", STREAMS, "no limit",
        "Most records of a micro-batch, as Kinesis counts them (an aggregated record is one), in equal parts for the shards "
        "that can be read. It makes the query read records twice: to count them, and to have them.",
    ),
    Option("maxBytesPerTrigger", STREAMS, "no limit", "Most bytes of a micro-batch, in equal parts, at the same cost."),
    Option(
        "failOnDataLoss", ALL, "`true`",
        "Whether records that are gone before they were read end the query. With `false` it goes on at what there is, and logs "
        "a warning.",
    ),
    *(_OF_KAFKA[name] for name in VALUE_OPTIONS),
)  # fmt: skip
"""Every option."""

_LAST_TIME = 253_402_300_799_999
"""Milliseconds since 1970 at the end of the year 9999, the last that AWS can be asked about."""

_INSTEAD = {
    "subscribe": f"{STREAM_OPTION} names the one stream that is read",
    "subscribepattern": f"{STREAM_OPTION} names the one stream that is read",
    "assign": "all shards of the stream are read",
    "includeheaders": "records of Kinesis have no headers",
    "endingoffsets": "a batch ends with what there is",
    "minpartitions": "a shard is read by one task, as fast as Kinesis gives it",
    "maxrecordsperpartition": "a shard is read by one task, as fast as Kinesis gives it",
    "minoffsetspertrigger": "Kinesis does not tell how many records there are",
}


@dataclass(frozen=True, slots=True)
class KinesisSettings:
    """The options, parsed. `start` is EARLIEST, LATEST or seconds since 1970; None for a limit: there is none.

    `of_tasks`: of what a shard allows, what tasks have in executors of their own.
    """

    stream: str
    region: str
    endpoint: str = ""
    credentials: str = ""
    start: str | float = LATEST
    fail_on_data_loss: bool = True
    span: float = SPAN
    max_records: int | None = None
    max_bytes: int | None = None
    values: ValueFormat = field(default_factory=ValueFormat)
    of_tasks: Share = WHOLE

    @property
    def access(self) -> StreamAccess:
        """How the stream is reached, from any process."""
        keys = keys_in(self.credentials) if self.credentials else None
        return StreamAccess(self.stream, self.region, self.endpoint, keys)

    def pace(self, share: Share = WHOLE) -> Pace:
        """The account of what the stream's shards allow, or a share of that, which all processes of this machine have together.

        In an executor it is that of tasks: in a group the driver, elsewhere, has the rest.
        """
        return pace_of((self.stream, self.region, self.endpoint), share=self.of_tasks if in_executor() else share)


def in_executor(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this is a worker of an executor, which has a machine, or a pod, of its own; its driver's tasks are in none."""
    return "SPARK_EXECUTOR_ID" in environment


def of_pod(said: Mapping[str, str], **wanted: Any) -> KinesisSettings:
    """The settings of a query in a group: how the stream is reached, as its pod says, and what else is `wanted`."""
    return KinesisSettings(said["stream"], said["region"], said["endpoint"], said["credentials"], **wanted)


def reads_kinesis(options: Mapping[str, str]) -> bool:
    """Whether these are the options of a query that reads Kinesis by itself."""
    return any(name.lower().startswith("kinesis.") for name in options) and not in_group(options)


def in_group(options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a query with these options reads its ConsumerGroup's stream, which the pod's environment names."""
    alone = {STREAM_OPTION, "kafka.bootstrap.servers"}
    return bool(environment.get(STREAM_VARIABLE)) and not any(name.lower() in alone for name in options)


def group_options(options: Mapping[str, str]) -> Settings:
    """What a query in a group wants. Raises OptionError."""
    given = _named(options)
    for option in KINESIS_OPTIONS:
        if option.name in given and Mode.GROUP not in option.modes:
            raise OptionError(
                f"option {option.name} has no meaning in a ConsumerGroup, which says itself what is read and from where: remove"
                f" it, or give {STREAM_OPTION} to read without a ConsumerGroup"
            )
    span = given.get("kinesis.maxSpanPerTrigger")
    limits = Limits(
        max_records=whole(given, "maxOffsetsPerTrigger"),
        max_bytes=whole(given, "maxBytesPerTrigger"),
        max_span=None if span is None else duration("kinesis.maxSpanPerTrigger", span),
    )
    values = value_format(given)
    return Settings(Mode.GROUP, limits, fail_on_data_loss=flag(given, "failOnDataLoss", default=True), values=values)


def check_names(options: Mapping[str, str]) -> None:
    """Whether there are such options. Raises OptionError."""
    _named(options)


def read_options(options: Mapping[str, str], *, batch: bool) -> KinesisSettings:
    """The settings of one read. Raises OptionError."""
    given = _named(options)
    mode = Mode.BATCH if batch else Mode.STREAM
    for option in KINESIS_OPTIONS:
        if option.name in given and mode not in option.modes:
            raise OptionError(f"option {option.name} has no meaning for {mode.value}: remove it")
    if "startingOffsets" in given and "startingTimestamp" in given:
        raise OptionError("options startingOffsets and startingTimestamp say the same thing in two ways: keep one of them")
    stream = given.get(STREAM_OPTION, "").strip()
    if not stream:
        raise OptionError(f"what is to be read? give the option {STREAM_OPTION}, the name or the ARN of a stream")
    return KinesisSettings(
        stream,
        _region(given, stream),
        _endpoint(given.get("kinesis.endpoint", "")),
        given.get("kinesis.credentials", ""),
        _start(given, batch=batch),
        flag(given, "failOnDataLoss", default=True),
        duration("kinesis.maxSpanPerTrigger", given.get("kinesis.maxSpanPerTrigger", f"{SPAN:g}s")),
        whole(given, "maxOffsetsPerTrigger"),
        whole(given, "maxBytesPerTrigger"),
        value_format(given),
    )


def values_in(options: Mapping[str, str]) -> ValueFormat:
    """How values are read. Raises OptionError."""
    return value_format(_named(options))


def _named(options: Mapping[str, str]) -> dict[str, str]:
    known = {option.name.lower(): option.name for option in KINESIS_OPTIONS}
    given: dict[str, str] = {}
    for key, text in options.items():
        name = key.lower()
        if name in known:
            given[known[name]] = text
        elif name.startswith("kafka."):
            raise OptionError(f"options {key} and {STREAM_OPTION} do not go together: one query reads Kafka or Kinesis")
        elif name in {each.lower() for each in _OF_KAFKA}:
            raise OptionError(f"option {key} has no meaning for Kinesis: {_INSTEAD.get(name, 'remove it')}")
        else:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {known[near[0]]}?" if near else f"the options are {', '.join(known.values())}"
            raise OptionError(f"unknown option {key!r} of format shardherd for Kinesis; {hint}")
    return given


def _region(given: Mapping[str, str], stream: str) -> str:
    region = given.get("kinesis.region", "").strip()
    if stream.startswith("arn:"):
        parts = stream.split(":")
        if len(parts) != 6 or parts[2] != "kinesis" or not parts[5].startswith("stream/"):
            raise OptionError(
                f"option {STREAM_OPTION} {stream!r} is no ARN of a stream: it is arn:aws:kinesis:REGION:ACCOUNT:stream/NAME"
            )
        if region and region != parts[3]:
            raise OptionError(f"option kinesis.region {region!r} is not that of the stream's ARN, {parts[3]!r}: remove it")
        return parts[3]
    if "/" in stream:
        raise OptionError(f"option {STREAM_OPTION} {stream!r} is neither a name nor an ARN of a stream: correct it")
    if not region:
        raise OptionError("option kinesis.region is missing: give the region of the stream, such as eu-central-1")
    return region


def _endpoint(text: str) -> str:
    if text and not text.startswith(("http://", "https://")):
        raise OptionError(f"option kinesis.endpoint must be a URL such as https://host:port, not {text!r}")
    return text


def _start(given: Mapping[str, str], *, batch: bool) -> str | float:
    if "startingTimestamp" in given:
        text = given["startingTimestamp"].strip()
        at = whole_number(text)
        if at is None:
            raise OptionError(f"option startingTimestamp must be milliseconds since 1970, not {text[:80]!r}")
        if at > _LAST_TIME:
            raise OptionError(f"option startingTimestamp must be milliseconds since 1970, not {text!r}, of a year beyond 9999")
        return at / 1000
    start = given.get("startingOffsets", EARLIEST if batch else LATEST).strip().lower()
    if start not in (EARLIEST, LATEST) or (batch and start == LATEST):
        allowed = EARLIEST if batch else f"{EARLIEST} or {LATEST}"
        raise OptionError(f"option startingOffsets must be {allowed} for Kinesis, not {given['startingOffsets']!r}")
    return start
