"""Damaged JSON and Avro values of random schemas, and whether the compiled readers make of them what the slow ones do.

`python -m tests.property.value_damage FIRST LAST` runs those seeds; with NUMBA_BOUNDSCHECK=1 an access outside of a value or of
an array ends it.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql import types as sql

from shardherd.source.values import compiled_values, value_layout
from shardherd.source.values.avro_column import AvroColumn
from shardherd.source.values.decoded_values import PERMISSIVE, Decoded, Decoder
from shardherd.source.values.json_column import JsonColumn
from tests.harness import avro, documents
from tests.property.seeds import run

ZONES = ("UTC", "America/New_York", "Europe/Paris")
COUNT = 40
_CORRUPT = "_corrupt_record"


def _prove_nothing(*arguments: Any) -> int:
    """In place of a compiled reader of values that are all there: each goes the slow way."""
    status = arguments[-2]
    status[:] = value_layout.SLOW
    return len(status)


def slowly(decoder: Decoder, values: pa.Array[Any]) -> Decoded:
    """What the slow reader alone makes of the values."""
    with (
        patch.object(compiled_values, "documents", _prove_nothing),
        patch.object(compiled_values, "avro_records", _prove_nothing),
    ):
        return decoder.decode(values)


def case(seed: int) -> tuple[Decoder, list[bytes | None]]:
    """A decoder of this seed, and what it is given."""
    rng = random.Random(seed)
    if seed % 2:
        schema = documents.schema(rng)
        full = sql.StructType([*schema.fields, sql.StructField(_CORRUPT, sql.StringType())])
        decoder = JsonColumn(full, mode=PERMISSIVE, corrupt=_CORRUPT, time_zone=rng.choice(ZONES))
        return decoder, documents.documents(rng, schema, COUNT)
    record = avro.Schemas(rng).record()
    return AvroColumn(json.dumps(record), mode=PERMISSIVE, registry_url=None), avro.values(rng, record, COUNT)


def one(seed: int) -> Counter[str]:
    """How many of this seed's values went which way. Raises AssertionError if the readers disagree about one."""
    decoder, values = case(seed)
    column = pa.array(values, pa.binary())
    found, wanted = decoder.decode(column), slowly(decoder, column.drop_null())
    found.values.validate(full=False)
    others = iter(documents.plain(wanted.values))
    for value, mine in zip(values, documents.plain(found.values), strict=True):
        other = None if value is None else next(others)
        assert mine == other, f"seed {seed}: {value!r}: compiled {mine}, slow {other}"
    assert found.malformed == wanted.malformed, f"seed {seed}"
    kind = "JSON" if seed % 2 else "Avro"
    return Counter({f"{kind} fast": len(values) - found.slow, f"{kind} slow": found.slow, f"{kind} bad": found.malformed})


if __name__ == "__main__":
    run(one)
