"""The table of the source's options: their names, where each has a meaning, its default and what it means.

`options` parses by it, and the documentation is made of it. It decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from shardherd.source.kafka.fetch_memory import FETCH_MEMORY, LEAST_MEMORY


class Mode(Enum):
    """How the source is used: as a consumer of a ConsumerGroup, as a stream of its own, or once."""

    GROUP = "in a ConsumerGroup"
    STREAM = "a stream of its own"
    BATCH = "a batch read"


ALL = frozenset(Mode)
ALONE = frozenset({Mode.STREAM, Mode.BATCH})
STREAMS = frozenset({Mode.GROUP, Mode.STREAM})
BATCH, GROUP = frozenset({Mode.BATCH}), frozenset({Mode.GROUP})


@dataclass(frozen=True, slots=True)
class Option:
    """One option, for the table in the documentation too. `default` is text."""

    name: str
    modes: frozenset[Mode]
    default: str
    meaning: str


OPTIONS = (
    Option("kafka.bootstrap.servers", ALONE, "",
        "The brokers. With it the source needs no operator; without it, it reads in a ConsumerGroup.",
    ),
    Option("subscribe", ALONE, "", "Topics, separated by commas."),
    Option("subscribePattern", ALONE, "", "A regular expression that a topic's whole name must match."),
    Option("assign", ALONE, "", 'Single partitions: `{"clicks": [0, 1]}`.'),
    Option(
        "startingOffsets", ALONE, "`latest`; in a batch `earliest`",
        '`earliest`, `latest`, or an offset for every partition: `{"clicks": {"0": 23, "1": -2}}`, where -2 is its beginning '
        "and -1 its end. A stream uses it once, when it has no checkpoint yet.",
    ),
    Option(
        "startingTimestamp", ALONE, "",
        "Start at the first record at or after this time, in milliseconds since 1970.",
    ),
    Option(
        "startingOffsetsByTimestamp", ALONE, "",
        'The same with a time for every partition: `{"clicks": {"0": 1700000000000}}`.',
    ),
    Option(
        "startingOffsetsByTimestampStrategy", ALONE, "`error`",
        "What a start time means where no record has reached it: `error`, or `latest` for the end.",
    ),
    Option("endingOffsets", BATCH, "`latest`", "Where a batch ends (exclusive), written as `startingOffsets`."),
    Option(
        "endingTimestamp", BATCH, "",
        "End before the first record at or after this time; at the end where there is none.",
    ),
    Option("endingOffsetsByTimestamp", BATCH, "", "The same with a time for every partition."),
    Option(
        "failOnDataLoss", ALL, "`true`",
        "Whether records that are gone before they were read (deleted by retention, a topic deleted or made anew) end the "
        "query. With `false` the source goes on at what there is, and logs a warning. In a group this is about the records of "
        "a running micro-batch: a lost checkpoint is the coordinator's business.",
    ),
    Option(
        "kafka.isolation.level", ALL, "`read_uncommitted`",
        "`read_committed` leaves out the records of aborted transactions, and waits for open ones. In a group "
        "`spec.source.kafka.isolationLevel` sets the default, and must not differ.",
    ),
    Option(
        "kafka.client.rack", ALL, "the pod's zone",
        "Where the tasks are: records are read from a replica whose broker has this `broker.rack`, if the brokers have a "
        "`replica.selector.class` that looks at racks. Without it each task takes the zone of its pod (`SHARDHERD_ZONE`), if "
        "that is known; empty: leaders are read.",
    ),
    Option("includeHeaders", ALL, "`false`", "Whether there is a column `headers`."),
    Option(
        "maxOffsetsPerTrigger", STREAMS, "no limit",
        "Most records of a micro-batch, shared by the shards in proportion to what they have. A shard with news gives at least "
        "one, as in Spark's own source.",
    ),
    Option(
        "minOffsetsPerTrigger", STREAMS, "0",
        "Fewest records that a micro-batch is made for, unless `maxTriggerDelay` is over.",
    ),
    Option(
        "maxTriggerDelay", STREAMS, "`15m`",
        "How long to wait for `minOffsetsPerTrigger`: a number with `ms`, `s`, `m` or `h`.",
    ),
    Option(
        "maxBytesPerTrigger", STREAMS, "no limit",
        "About how many bytes a micro-batch may have, as the brokers keep them (compressed). Taken from the size of the "
        "next records of each shard, so it is no exact bound.",
    ),
    Option(
        "cell", GROUP, "",
        "Set by `cell.read()` of `run_cells`: whose records are read. See [state](state.md).",
    ),
    Option("topics", GROUP, "all", "With `cell`: which of the group's topics, separated by commas."),
    Option(
        "targetBatchSeconds", GROUP, "10",
        "How long a micro-batch should take at the measured rate: shards move between micro-batches only.",
    ),
    Option(
        "minPartitions", ALL, "",
        "At least so many tasks, if there are as many records: large ranges of a shard are split. Not in an ordered group.",
    ),
    Option(
        "maxRecordsPerPartition", ALL, "no limit",
        "Most records of one task: larger ranges are split. Not in an ordered group.",
    ),
    Option(
        "maxFetchBytesPerTask", ALL, f"{FETCH_MEMORY}",
        "Most bytes that Kafka's answers take in the memory of a task, and so of a Python worker, however many brokers it "
        f"reads from; at least {LEAST_MEMORY}. See [memory](source-formats.md#memory).",
    ),
    Option(
        "valueFormat", ALL, "`raw`",
        "`json` or `avro`: the column `value` is typed, as `from_json` or `from_avro` would make it. See "
        "[typed values](source-values.md).",
    ),
    Option(
        "valueSchema", ALL, "",
        "The schema of typed values: Spark DDL or Spark's JSON for `json`, an Avro schema for `avro`.",
    ),
    Option(
        "mode", ALL, "`PERMISSIVE`; for `avro` `FAILFAST`",
        "What becomes of a value that cannot be read: `PERMISSIVE` makes it null, `DROPMALFORMED` leaves the record out, "
        "`FAILFAST` ends the query.",
    ),
    Option(
        "columnNameOfCorruptRecord", ALL, "`_corrupt_record`",
        "The text field of a JSON `valueSchema` that takes malformed values.",
    ),
    Option("timeZone", ALL, "the session's", "The zone of a JSON timestamp that names none."),
    Option(
        "schemaRegistryUrl", ALL, "",
        "Avro values are in Confluent's wire format, and their schemas are asked for here.",
    ),
)  # fmt: skip
"""Every option but the Kafka settings (`kafka_settings`)."""

_NO_OFFSET_REQUESTS = "how Kafka is asked for offsets is not configured; a Kafka that is away is asked again until it answers"
MEANINGLESS = {
    "groupIdPrefix": "no Kafka group is joined",
    "kafkaConsumer.pollTimeoutMs": "a task fails after two minutes without any record",
    "fetchOffset.numRetries": _NO_OFFSET_REQUESTS,
    "fetchOffset.retryIntervalMs": _NO_OFFSET_REQUESTS,
    "path": "load() takes no path here",
}
"""Options that other sources have, and what is instead."""
