"""What the compiled loops make of the inputs of the property tests, as one digest for each kind of input.

`python -m tests.property.answers` prints, as JSON, the processor that they were compiled for, and the digests: those of two
processors must be the same.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import types as sql

from shardherd.source.compiled.processors import here
from shardherd.source.decoding import record_batches
from shardherd.source.values.avro_column import AvroColumn
from shardherd.source.values.json_column import JsonColumn
from tests.harness import avro, documents
from tests.property import record_damage

TIMESTAMP = record_damage.ALL.index("timestamp")
BATCHES, SCHEMAS, VALUES = 600, 4, 250


def of_batches() -> Iterable[str]:
    """Whole and damaged record batches: all rows, or why there are none."""
    for seed in range(BATCHES):
        data, checksums, aborted = record_damage.damage(seed)
        if seed % 3 == 0:
            data, checksums, aborted = record_damage.whole(random.Random(seed)), True, ()
        try:
            scanned = record_batches.scan(record_damage.SHARD, data, 0, aborted=aborted, checksums=checksums)
            for batch in record_batches.decode(record_damage.SHARD, scanned, 0, 1 << 62, record_damage.ALL):
                # Some times are beyond what Python has a datetime for.
                whole = batch.set_column(TIMESTAMP, "timestamp", batch.column(TIMESTAMP).cast("int64"))
                yield repr(whole.to_pydict())
        except record_batches.CorruptRecordsError as error:
            yield str(error)


def of_json() -> Iterable[str]:
    """Documents of random schemas, right and wrong ones."""
    for seed in range(SCHEMAS):
        chance = random.Random(seed)
        schema = documents.schema(chance)
        full = sql.StructType([*schema.fields, sql.StructField("_corrupt_record", sql.StringType())])
        reader = JsonColumn(full, mode="PERMISSIVE", corrupt="_corrupt_record", time_zone="UTC")
        found = reader.decode(pa.array(documents.documents(chance, schema, VALUES), pa.binary()))
        yield repr((documents.plain(found.values), found.slow))


def of_avro() -> Iterable[str]:
    """Values of random schemas, right and wrong ones."""
    for seed in range(SCHEMAS):
        chance = random.Random(seed)
        schema = avro.Schemas(chance).record()
        reader = AvroColumn(json.dumps(schema), mode="PERMISSIVE", registry_url=None)
        found = reader.decode(pa.array(avro.values(chance, schema, VALUES), pa.binary()))
        yield repr((documents.plain(found.values), found.slow))


def digest(texts: Iterable[str]) -> str:
    """Of all of them, and how many there are."""
    found, count = hashlib.sha256(), 0
    for text in texts:
        found.update(text.encode("utf-8", "surrogatepass") + b"\0")
        count += 1
    return f"{count} {found.hexdigest()}"


def main() -> None:
    """Print them."""
    answers = {"batches": digest(of_batches()), "json": digest(of_json()), "avro": digest(of_avro())}
    print(json.dumps({"processor": here().name, **answers}))


if __name__ == "__main__":
    main()
