"""What a user says about the values of a stream: their format, schema and mode. The source's options end here.

`spark.source` reads the options into a ValueFormat, which is pickled to Spark's Python workers; there `spark.reader` asks it
for a decoder. Nothing heavy is imported before `decoder()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import types as sql

from shardherd.source.values import value_schema as schemas
from shardherd.source.values.decoded_values import FAIL_FAST, MODES, PERMISSIVE, Decoder

if TYPE_CHECKING:
    import pyarrow as pa

RAW, JSON, AVRO = "raw", "json", "avro"
KINDS = (RAW, JSON, AVRO)
OPTIONS = ("valueFormat", "valueSchema", "mode", "columnNameOfCorruptRecord", "timeZone", "schemaRegistryUrl")
"""The source's options that are about values. Names are not case-sensitive."""

CORRUPT_COLUMN = "_corrupt_record"


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """How values are read. `time_zone` None is the session's; `registry_url` None: values have no Confluent header."""

    kind: str = RAW
    schema: str = ""
    mode: str = PERMISSIVE
    corrupt_column: str = CORRUPT_COLUMN
    time_zone: str | None = None
    registry_url: str | None = field(default=None, repr=False)  # it may hold a password

    def spark_type(self) -> sql.DataType:
        """The type of the column `value`. Raises SchemaError."""
        if self.kind == JSON:
            return self._json_schema()
        if self.kind == AVRO:
            from shardherd.source.values.avro_schema import reader_type

            return reader_type(self.schema, nullable=self.mode != FAIL_FAST)
        return sql.BinaryType()

    def arrow_type(self) -> pa.DataType:
        """The same for Arrow."""
        return schemas.arrow_type(self.spark_type())

    def decoder(self, session_time_zone: str) -> Decoder | None:
        """What decodes the values, None if they stay raw. Compiles on its first use in a process, or loads what is compiled."""
        if self.kind == JSON:
            from shardherd.source.values.json_column import JsonColumn

            zone = self.time_zone or session_time_zone
            return JsonColumn(self._json_schema(), mode=self.mode, corrupt=self.corrupt_column, time_zone=zone)
        if self.kind == AVRO:
            from shardherd.source.values.avro_column import AvroColumn

            return AvroColumn(self.schema, mode=self.mode, registry_url=self.registry_url)
        return None

    def _json_schema(self) -> sql.StructType:
        schema = schemas.struct_of(self.schema)
        schemas.check_json(schema)
        corrupt = [each for each in schema.fields if each.name == self.corrupt_column]
        if corrupt and not isinstance(corrupt[0].dataType, sql.StringType):
            raise schemas.SchemaError(
                f"option valueSchema: the field {self.corrupt_column!r} takes malformed records and must be string, "
                f"not {corrupt[0].dataType.simpleString()}"
            )
        return schema


def from_options(options: Mapping[str, str]) -> ValueFormat:
    """The value format of a source's options. Raises ValueError naming the option, its value and what it may be."""
    given = {key.lower(): value for key, value in options.items()}

    def choice(name: str, default: str, allowed: tuple[str, ...]) -> str:
        value = given.get(name.lower(), default)
        found = [each for each in allowed if each.lower() == value.lower()]
        if not found:
            raise ValueError(f"option {name} is {value!r}; it may be {', '.join(allowed)}")
        return found[0]

    kind = choice("valueFormat", RAW, KINDS)
    if kind == RAW:
        if unused := [name for name in OPTIONS[1:] if name.lower() in given]:
            raise ValueError(f"option {unused[0]} needs option valueFormat to be json or avro; it is raw")
        return ValueFormat()
    if "valueschema" not in given:
        remedy = "Spark DDL, such as 'id bigint, name string'" if kind == JSON else "the Avro schema that values are read into"
        raise ValueError(f"option valueFormat is {kind}, which needs option valueSchema: {remedy}")
    for name, wanted in (("schemaRegistryUrl", AVRO), ("columnNameOfCorruptRecord", JSON), ("timeZone", JSON)):
        if name.lower() in given and kind != wanted:
            raise ValueError(f"option {name} is for valueFormat {wanted} only; valueFormat is {kind}")
    registry = given.get("schemaregistryurl")
    if registry is not None and not registry.startswith(("http://", "https://")):
        raise ValueError(f"option schemaRegistryUrl is {registry!r}; it must start with http:// or https://")
    chosen = ValueFormat(
        kind=kind,
        schema=given["valueschema"],
        mode=choice("mode", PERMISSIVE if kind == JSON else FAIL_FAST, MODES),
        corrupt_column=given.get("columnnameofcorruptrecord", CORRUPT_COLUMN),
        time_zone=given.get("timezone"),
        registry_url=registry,
    )
    if chosen.time_zone is not None:
        from shardherd.source.values.datetimes import UnknownZoneError, zone

        try:
            zone(chosen.time_zone)
        except UnknownZoneError as error:
            raise ValueError(f"option timeZone: {error}; name one such as UTC or Europe/Paris") from error
    chosen.spark_type()
    return chosen
