"""What Spark's Python workers read with: the connections of their process, and the values as their session wants them.

Called by `source` for every task; `source.reading.range_reader` reads the ranges. It keeps one set of connections, and a
decoder for each format of values, for the life of its process.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from shardherd.core.model.security import Security
from shardherd.source.decoding import record_batches
from shardherd.source.kafka.brokers import Brokers
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError
from shardherd.source.reading.range_reader import REQUEST_TIMEOUT, Decode
from shardherd.source.reading.typed_values import typed
from shardherd.source.values.decoded_values import Decoder
from shardherd.source.values.value_format import ValueFormat
from shardherd.spark.decode_stats import mine
from shardherd.spark.source import TIME_ZONE

log = logging.getLogger(__name__)

ZONE_VARIABLE = "SHARDHERD_ZONE"
"""Environment variable with the zone of the pod that this process is in."""

_open: dict[tuple[int, str, str, bool, str], Brokers] = {}


def brokers_of(
    bootstrap_servers: str, security: Mapping[str, Any], *, committed: bool = False, rack: str | None = None
) -> Brokers:
    """This process's connections to that Kafka. A forked process opens its own. `security` is `Security.as_dict()`.

    Without a `rack` it is the zone of this process's pod, if that is known.
    """
    near = os.environ.get(ZONE_VARIABLE, "") if rack is None else rack
    key = (os.getpid(), bootstrap_servers, json.dumps(dict(security), sort_keys=True), committed, near)
    if key not in _open:
        made = Security.from_dict(security)
        _open[key] = Brokers(bootstrap_servers, made, name="shardherd-reader", committed=committed, rack=near)
    return _open[key]


def warm_up(brokers: Brokers) -> None:
    """Connect ahead of the first range. Kafka being away is no reason to fail: there is nothing to read yet."""
    try:
        brokers.connect(REQUEST_TIMEOUT)
    except BrokersUnavailableError as error:
        log.warning("warming up without Kafka: %s", error)


def declared(batches: Iterator[pa.RecordBatch], not_null: frozenset[str]) -> Iterator[pa.RecordBatch]:
    """The same batches with these columns declared to have no null, as Spark expects them."""
    for batch in batches:
        fields = [field.with_nullable(field.name not in not_null) for field in batch.schema]
        yield pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))


def decoding(values: ValueFormat, columns: Sequence[str]) -> Decode:
    """How a task decodes: with the column `value` typed, where it is wanted and has a format. What is typed is counted."""
    decoder = decoder_of(values) if "value" in columns else None
    return record_batches.decode if decoder is None else typed(decoder, mine().add)


def decoder_of(values: ValueFormat) -> Decoder | None:
    """What decodes values of this format in this task's session, None for raw ones."""
    return _decoder(values, session_time_zone())


@lru_cache(maxsize=16)
def _decoder(values: ValueFormat, time_zone: str) -> Decoder | None:
    return values.decoder(time_zone)


def session_time_zone() -> str:
    """The time zone of the Spark session that runs this task: Spark hands its settings on, but not its defaults.

    `source.make_known` makes a setting of the default. Without it, it is the zone of the machine, as Java finds it.
    """
    context = TaskContext.get()
    zone = None if context is None else context.getLocalProperty(TIME_ZONE)
    if zone:
        return zone
    if zone := os.environ.get("TZ", "").removeprefix(":"):
        return zone
    link = Path("/etc/localtime")
    if link.is_symlink():
        _, _, name = str(link.resolve()).partition("/zoneinfo/")
        if name:
            return name
    return "UTC"
