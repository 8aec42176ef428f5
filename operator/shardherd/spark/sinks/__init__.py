"""Sinks that write each record once, for `foreachBatch` in a ConsumerGroup: `delta`, `kafka` and `postgresql`.

All keep the position of every shard beside the rows, and change them together. Which records a micro-batch has they learn by
`shardherd.spark.ranges`; with it you can make a sink of your own. What a query with keyed state gives is made of several
records: with `cell=cell` in the function that `run_cells` calls, its rows are known by the cell and the micro-batch's id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardherd.core.model.security import Security
    from shardherd.spark.cells.build import Cell
    from shardherd.spark.sinks.delta_table import DeltaSink
    from shardherd.spark.sinks.kafka_topic import KafkaSink
    from shardherd.spark.sinks.postgresql_table import PostgreSQLSink

__all__ = ["delta", "kafka", "postgresql"]


def delta(
    table: str,
    *,
    partition_by: Sequence[str] = (),
    leave_out: Sequence[str] = (),
    name: str = "",
    storage_options: Mapping[str, str] | None = None,
    accept_gaps: bool = False,
    cell: Cell | None = None,
) -> DeltaSink:
    """A sink that appends to a Delta table: `records.writeStream.foreachBatch(delta("s3://lake/clicks"))`.

    **What it guarantees.** Each record's rows are in the table once: whatever task, driver or operator is killed, whenever;
    though the micro-batch is run again, or a shard moves while it is written; though a consumer that was paused goes on after
    its shards have moved; though nobody learns whether a commit has happened. One commit adds all files of a micro-batch and
    for each of its shards a transaction identifier (application `<group UID>/<shard>@<topic's id>`, version: the position). A
    writer that comes too late with a shard is refused by Delta's protocol, and reads the positions again; others commit
    beside it. The sink's position wins over the group's checkpoint: what is below it is left out.

    **What it does not.** It knows records by their shard and offset: a record that was produced twice is two records. What
    your query makes of a record is its own affair: rows must be made of one record each. A checkpoint that is forced back
    writes nothing a second time, and RESTORE takes rows back but not the positions. Files that were written and not committed
    stay until VACUUM.

    **In a group with cells** rows of one record each are written as in any group. With `cell`, which `build(cell)` was
    called with, the DataFrame may be the result of keyed state: an aggregation, a join, deduplication, transformWithState.
    Each micro-batch of the cell is in the table once, in one commit with its number (application `<group
    UID>/cell/<number>@<generation of the state>`), whoever runs the cell, and though two do for a moment. A reset with
    `discardState: true` begins anew, and takes nothing back.

    Without `cell` the DataFrame must have the source's columns `shard` and `offset` (of Kinesis `sequenceNumber`);
    `leave_out` names columns that the table shall not have. A table that does not exist is made, with `partition_by`. Two
    DataFrames may go to one table in a micro-batch if each sink has a `name` of its own. `storage_options` are deltalake's.
    With `accept_gaps` a micro-batch may begin above the table's position, which is an error otherwise. It needs the extra
    `shardherd[delta]`, in executors too. Raises SinkError.
    """
    from shardherd.spark.sinks.delta_table import DeltaSink

    _check_text("table", table, "the path or the URI of a Delta table")
    _check_common(name, accept_gaps, cell)
    return DeltaSink(
        table,
        partition_by=_columns("partition_by", partition_by),
        leave_out=_columns("leave_out", leave_out),
        name=name,
        storage_options=_texts("storage_options", storage_options),
        accept_gaps=accept_gaps,
        cell=cell,
    )


def kafka(
    topic: str,
    *,
    options: Mapping[str, str] | None = None,
    name: str = "",
    group_id: str = "",
    compression: str = "none",
    transaction_timeout: float = 300.0,
    accept_gaps: bool = False,
    cell: Cell | None = None,
) -> KafkaSink:
    """A sink that writes records to a topic: `records.writeStream.foreachBatch(kafka("events"))`.

    **What it guarantees.** A consumer with `isolation.level=read_committed` reads each record once: whatever task, executor,
    driver, operator or broker is killed, whenever; though a task or a micro-batch is run again, or a shard moves while it is
    written; though a consumer that was paused goes on after its shards have moved; though nobody learns whether a commit has
    happened. One transaction has a shard's records and its position, which is the offset of the source's partition in the Kafka
    group `shardherd.<group UID>.<topic>` (with a name `.<name>` behind it, or `group_id`). Each shard has a transactional id of
    its own, that group's with `.<shard>` behind it: whoever writes next fences all that wrote before, and reads the position
    then. The sink's position wins over the group's checkpoint: what is below it is left out.

    **What it does not.** Who reads uncommitted records sees those of aborted transactions, too. Shards become visible one by
    one, not a micro-batch as a whole. It knows records by their shard and offset: a record that was produced twice is two
    records. A checkpoint that is forced back writes nothing a second time. Kafka forgets positions of shards that were not
    written for `offsets.retention.minutes`; then the group's checkpoint alone says where the shard goes on.

    **In a group with cells** rows of one record each are written as in any group. With `cell`, which `build(cell)` was
    called with, the DataFrame may be the result of keyed state: an aggregation, a join, deduplication, transformWithState.
    Each micro-batch of the cell is read once, its records in one transaction by one task, whoever runs the cell, and though
    two do for a moment. A reset with `discardState: true` begins anew, and takes nothing back.

    Without `cell` the DataFrame must have the source's columns `shard` and `offset`. It must have `value`, and may have
    `key`, `partition`, `headers` and `timestamp`, and nothing else. A record goes to its partition, or its key's as Kafka's
    own clients place it. `options` say where the topic is, as those of the source: `kafka.bootstrap.servers`,
    `kafka.security.protocol` and so on; without them it is the group's own cluster. In another one a topic with the name
    and the partitions of the source's must be there. `compression` is none, gzip, snappy, lz4 or zstd. After
    `transaction_timeout` seconds brokers abort what was begun and not ended. With `accept_gaps` a micro-batch may begin
    above the sink's position, which is an error otherwise. What reads Kinesis has no such positions, and is refused. Raises
    SinkError, KafkaSettingError.
    """
    from shardherd.source.encoding.record_encoding import COMPRESSIONS
    from shardherd.spark.sinks.kafka_topic import KafkaSink
    from shardherd.transactions.outcomes import SinkError, no_timeout

    _check_text("topic", topic, "the name of a topic")
    _check_common(name, accept_gaps, cell)
    if group_id != "":
        _check_text("group_id", group_id, "the id of a Kafka group")
    if not isinstance(compression, str) or compression not in COMPRESSIONS:
        raise SinkError(f"compression must be one of {', '.join(COMPRESSIONS)}, not {compression!r}")
    if wrong := no_timeout(transaction_timeout):
        raise SinkError(f"transaction_timeout {wrong}")
    return KafkaSink(
        topic,
        _access(_texts("options", options)),
        name=name,
        group_id=group_id,
        compression=compression,
        transaction_timeout=transaction_timeout,
        accept_gaps=accept_gaps,
        cell=cell,
    )


def _access(options: dict[str, str]) -> Callable[[], tuple[str, Security]]:
    """Where to write, and how to get there: the group's own cluster, or what the options say. Raises KafkaSettingError."""
    from shardherd.source.security import kafka_settings

    if not options:
        from shardherd.spark.application import source_access

        return source_access
    given = {}
    for key, text in options.items():
        name = key.lower().removeprefix("kafka.")
        if not key.lower().startswith("kafka.") or name == "client.rack":
            raise kafka_settings.KafkaSettingError(
                f"option {key} has no meaning here: options are kafka.bootstrap.servers and so on"
            )
        kafka_settings.check(name)
        given[name] = text
    servers = given.pop("bootstrap.servers", "")
    if not servers:
        raise kafka_settings.KafkaSettingError(
            "option kafka.bootstrap.servers is missing: give it, or no options at all to write to the group's own cluster"
        )
    security = kafka_settings.security_of(given)
    return lambda: (servers, security)


def postgresql(
    conninfo: str,
    table: str,
    *,
    leave_out: Sequence[str] = (),
    name: str = "",
    positions: str = "shardherd_positions",
    accept_gaps: bool = False,
    cell: Cell | None = None,
) -> PostgreSQLSink:
    """A sink that inserts into a table of PostgreSQL: `records.writeStream.foreachBatch(postgresql("host=db", "clicks"))`.

    **What it guarantees.** Each record's rows are in the table once: whatever task, executor, driver or operator is killed,
    whenever; though a task or a micro-batch is run again, or a shard moves while it is written; though a consumer that was
    paused goes on after its shards have moved; though nobody learns whether a commit has happened. One transaction has a
    shard's rows and moves its position in the table `positions`, only from where the rows begin and only if no newer grant
    (epoch) has written: else it is rolled back. As soon as a new holder has asked for the positions, the one before it
    writes nothing more. The sink's position wins over the group's checkpoint: what is below it is left out.

    **What it does not.** Shards become visible one by one, not a micro-batch as a whole. It knows records by their shard and
    offset: a record that was produced twice is two records. What your query makes of a record is its own affair: rows must
    be made of one record each. A checkpoint that is forced back writes nothing a second time. With a standby that is
    promoted, PostgreSQL's own `synchronous_commit` says what may be lost: rows and positions are lost together.

    **In a group with cells** rows of one record each are written as in any group. With `cell`, which `build(cell)` was
    called with, the DataFrame may be the result of keyed state: an aggregation, a join, deduplication, transformWithState.
    Each micro-batch of the cell is in the table once, its rows in one transaction by one task, whoever runs the cell, and
    though two do for a moment. A reset with `discardState: true` begins anew, and takes nothing back.

    `conninfo` is psycopg's, also for executors, which write. `table` must exist, `positions` is made; both may begin with a
    schema's name, and are spelled as in the catalogue. Without `cell` the DataFrame must have the source's columns `shard`
    and `offset` (of Kinesis `sequenceNumber`); `leave_out` names columns that the table does not have. Arrays, maps and
    structs are refused: make texts of them. Two DataFrames may go to one table in a micro-batch if each sink has a `name`
    of its own. With `accept_gaps` a micro-batch may begin above the sink's position, which is an error otherwise. It needs
    the extra `shardherd[postgresql]`, in executors too. Raises SinkError.
    """
    from shardherd.spark.sinks.postgresql_table import PostgreSQLSink
    from shardherd.transactions.outcomes import SinkError

    _check_text("table", table, "the name of a table")
    _check_text("positions", positions, "the name of a table")
    _check_common(name, accept_gaps, cell)
    if not isinstance(conninfo, str):
        raise SinkError(f"conninfo must be a text, as psycopg takes it, not {type(conninfo).__name__}")  # it may be a secret
    return PostgreSQLSink(
        conninfo,
        table,
        leave_out=_columns("leave_out", leave_out),
        name=name,
        positions=positions,
        accept_gaps=accept_gaps,
        cell=cell,
    )


def _check_text(argument: str, given: object, what: str) -> None:
    """Raises SinkError for what is no text, or an empty one."""
    from shardherd.transactions.outcomes import SinkError

    if not isinstance(given, str) or not given:
        raise SinkError(f"{argument} must be {what}, not {given!r}")


def _check_common(name: object, accept_gaps: object, cell: object) -> None:
    """What every sink may be given. Raises SinkError: a text like "false" would accept gaps."""
    from shardherd.transactions.outcomes import SinkError

    if not isinstance(name, str):
        raise SinkError(f"name must be a text, not {name!r}")
    if not isinstance(accept_gaps, bool):
        raise SinkError(f"accept_gaps must be True or False, not {accept_gaps!r}")
    # One that a program's own test plays has these, too.
    if cell is not None and not (isinstance(getattr(cell, "number", None), int) and isinstance(getattr(cell, "id", None), str)):
        raise SinkError(f"cell must be what build(cell) was called with, not {cell!r}: write cell=cell")


def _columns(argument: str, given: object) -> tuple[str, ...]:
    """The names of columns. Raises SinkError: a text is a sequence, too, of its characters."""
    from shardherd.transactions.outcomes import SinkError

    if isinstance(given, str):
        raise SinkError(f"{argument} must be a list of names, not the text {given!r}: write {argument}=[{given!r}]")
    if not isinstance(given, Sequence) or not all(isinstance(each, str) for each in given):
        raise SinkError(f"{argument} must be a list of names of columns, not {given!r}")
    if twice := [name for name in given if given.count(name) > 1]:
        raise SinkError(f"{argument} names the column {twice[0]!r} twice: name it once")
    return tuple(given)


def _texts(argument: str, given: object) -> dict[str, str]:
    """Settings, whose values may be secrets. Raises SinkError."""
    from shardherd.transactions.outcomes import SinkError

    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise SinkError(f"{argument} must be a mapping of texts, as in {{'name': 'value'}}, not {type(given).__name__}")
    for name, text in given.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise SinkError(f"{argument} must be texts, and {name!r} has a value of type {type(text).__name__}: write a text")
    return dict(given)
