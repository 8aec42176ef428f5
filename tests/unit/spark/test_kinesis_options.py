"""The options of a query that reads Kinesis, what is wrong with them, and the offsets that Spark logs for it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from shardherd.clock import boot_time
from shardherd.source.kinesis.client import StreamAccess
from shardherd.source.kinesis.pacing import COUNTED, OF_TASKS
from shardherd.spark.kinesis.offsets import KinesisOffsets, ShardOffsets, parse
from shardherd.spark.kinesis.options import KINESIS_OPTIONS, KinesisSettings, in_executor, read_options, reads_kinesis
from shardherd.spark.kinesis.readers import SCHEMA
from shardherd.spark.offsets import OffsetsError
from shardherd.spark.options import OptionError
from shardherd.spark.schema import ColumnError
from shardherd.spark.source import ShardherdSource

GIVEN = {"kinesis.stream": "orders", "kinesis.region": "eu-central-1"}
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
NUMBER = 49590338271490256608559692538361571095921575989136588898


def test_a_stream_and_its_region_are_enough() -> None:
    assert read_options(GIVEN, batch=False) == KinesisSettings("orders", "eu-central-1")
    assert read_options(GIVEN, batch=True) == KinesisSettings("orders", "eu-central-1", start="earliest")
    assert read_options({"KINESIS.STREAM": ARN}, batch=False) == KinesisSettings(ARN, "eu-west-1")


def test_every_option_is_taken() -> None:
    given = {
        **GIVEN,
        "kinesis.endpoint": "http://localhost:4567",
        "kinesis.credentials": "/secrets/aws",
        "startingTimestamp": "1700000000500",
        "kinesis.maxSpanPerTrigger": "2m",
        "MaxOffsetsPerTrigger": "500",
        "maxBytesPerTrigger": "1000000",
        "failOnDataLoss": "false",
        "valueFormat": "json",
        "valueSchema": "n BIGINT",
    }
    settings = read_options(given, batch=False)
    assert (settings.start, settings.span, settings.max_records, settings.max_bytes, settings.fail_on_data_loss) == (
        1_700_000_000.5,
        120.0,
        500,
        1_000_000,
        False,
    )
    assert settings.access == StreamAccess("orders", "eu-central-1", "http://localhost:4567")
    assert settings.access.keys is not None
    assert settings.values.spark_type() == StructType([StructField("n", LongType())])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"kinesis.stream": ""}, "what is to be read.*kinesis.stream"),
        ({"kinesis.region": ""}, "kinesis.region is missing"),
        ({"kinesis.stream": "a/b"}, "'a/b' is neither a name nor an ARN"),
        ({"kinesis.stream": "arn:aws:s3:::bucket"}, "no ARN of a stream"),
        ({"kinesis.stream": ARN}, "'eu-central-1' is not that of the stream's ARN, 'eu-west-1': remove it"),
        ({"kinesis.endpoint": "localhost:4567"}, "kinesis.endpoint must be a URL.*'localhost:4567'"),
        ({"kinesis.strem": "x"}, "unknown option 'kinesis.strem'.*did you mean kinesis.stream"),
        ({"kafka.bootstrap.servers": "k:9092"}, "kafka.bootstrap.servers and kinesis.stream do not go together"),
        ({"subscribe": "x"}, "option subscribe has no meaning for Kinesis: kinesis.stream names the one stream"),
        ({"minPartitions": "2"}, "minPartitions has no meaning for Kinesis: a shard is read by one task"),
        ({"targetBatchSeconds": "2"}, "targetBatchSeconds has no meaning for Kinesis: remove it"),
        ({"startingOffsets": '{"orders": {"0": 1}}'}, "startingOffsets must be earliest or latest for Kinesis"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp must be milliseconds since 1970, not 'yesterday'"),
        ({"startingTimestamp": "9" * 5000}, "startingTimestamp must be milliseconds since 1970, not '9999"),
        ({"startingTimestamp": "253402300800000"}, "not '253402300800000', of a year beyond 9999"),
        ({"startingTimestamp": "1", "startingOffsets": "latest"}, "say the same thing in two ways"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be a whole number above 0, not '0'"),
        ({"kinesis.maxSpanPerTrigger": "0s"}, "kinesis.maxSpanPerTrigger must be a duration.*'0s'"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false"),
        ({"valueFormat": "xml"}, "valueFormat"),
    ],
)
def test_what_is_wrong_names_the_option_and_the_remedy(more: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_options({**GIVEN, **more}, batch=False)


@pytest.mark.parametrize(
    ("name", "value"), [("maxOffsetsPerTrigger", "5"), ("kinesis.maxSpanPerTrigger", "5s"), ("startingOffsets", "latest")]
)
def test_what_bounds_a_stream_has_no_meaning_for_a_batch(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=name):
        read_options({**GIVEN, name: value}, batch=True)


def test_the_format_knows_which_source_is_meant() -> None:
    assert reads_kinesis({"Kinesis.Stream": "x"})
    assert not reads_kinesis({"kafka.bootstrap.servers": "k:9092"})
    assert ShardherdSource(GIVEN).schema() == SCHEMA
    with pytest.raises(OptionError, match=r"did you mean kinesis\.region"):
        ShardherdSource({"kinesis.regin": "x"})
    with pytest.raises(ColumnError, match="column 'offset' is not of this source"):
        ShardherdSource(GIVEN).streamReader(StructType([StructField("offset", LongType())]))
    with pytest.raises(ColumnError, match="column 'partition' is not of this source"):
        ShardherdSource(GIVEN).reader(StructType([StructField("partition", LongType())]))


def test_each_option_is_in_the_table_once() -> None:
    names = [option.name.lower() for option in KINESIS_OPTIONS]
    assert len(names) == len(set(names))


def test_offsets_keep_every_digit() -> None:
    offsets = KinesisOffsets("arn@1", {"shardId-1": ShardOffsets(NUMBER, NUMBER + 1), "shardId-0": ShardOffsets(7, 7, True)})
    text = json.dumps(offsets.as_dict())
    assert text == (
        '{"kinesis": "arn@1", "shards": {"shardId-0": ["7", "7", true], '
        f'"shardId-1": ["{NUMBER}", "{NUMBER + 1}", false]}}, "v": 1}}'
    )
    assert parse(text) == offsets
    assert parse(KinesisOffsets().as_dict()) == KinesisOffsets()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"kinesis": "x", "shards": {}, "v": 2}, "offsets of version 2, this source writes 1"),
        ({"group": "standalone", "shards": {}, "v": 1, "warm": 0}, "offsets of another source"),
        ({"kinesis": "x", "shards": {"a": ["1", "2"]}, "v": 1}, "offsets of another source"),
        ({"clicks": {"0": 5}}, "offsets of another source"),
    ],
)
def test_offsets_of_others_are_refused(raw: dict[str, object], message: str) -> None:
    with pytest.raises(OffsetsError, match=message):
        parse(raw)


@pytest.mark.parametrize(
    ("made", "calls", "size"),
    [
        (KinesisSettings("orders", "eu-central-1"), 5, 2_000_000),
        (KinesisSettings("orders", "eu-central-1", of_tasks=OF_TASKS), 3, 1_600_000),
        (KinesisSettings("orders", "eu-central-1", of_tasks=COUNTED), 2.5, 1_000_000),
    ],
)
def test_the_tasks_of_executors_leave_a_share_to_the_driver(
    made: KinesisSettings, calls: float, size: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def waits(shard: str) -> tuple[float, float]:
        """Seconds after a call without records, and after one that brought these bytes."""
        pace, now = made.pace(), boot_time() + 1.0
        pace.asked(shard, now)
        empty = pace.due(shard) - now
        pace.answered(shard, size)
        return empty, pace.due(shard) - now

    assert waits("shardId-000000000000") == pytest.approx((1 / 5, size / 2_000_000), abs=0.01)
    monkeypatch.setenv("SPARK_EXECUTOR_ID", "1")
    assert (in_executor({}), in_executor()) == (False, True)
    assert waits("shardId-000000000001") == pytest.approx((1 / calls, 1.0), abs=0.01)
