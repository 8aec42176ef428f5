"""An output that writes to a topic of Kafka: records and position in one transaction, each record once for who reads committed.

A user derives from it; `sending` calls it. It decides whether an earlier holder is kept from writing, and to which partition
a record goes. The requests, and what their failures mean, are `transactions`'.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shardherd.core.model.errors import FencedEpochError
from shardherd.core.model.naming import is_of_kinesis
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.security.environment import BOOTSTRAP, KafkaAccess
from shardherd.transactions.outcomes import no_timeout
from shardherd.worker.guarantees import OutputsError
from shardherd.worker.output import MovedPositionError, ShardGrant, TransactionalOutput
from shardherd.worker.records import Record, records_of

if TYPE_CHECKING:
    from shardherd.core.model.security import Security
    from shardherd.source.encoding.record_encoding import Encoder
    from shardherd.transactions.kafka_transactions import Output, Transaction, Transactions
    from shardherd.transactions.outcomes import Stored

STEP_TIMEOUT = 30.0
"""Seconds for which a step of a transaction is tried before the batch counts as failed, and the position is asked for again."""


class KafkaOutput(TransactionalOutput):
    """Say the `topic`. A consumer with `isolation.level=read_committed` reads each record there once, in the shard's order.

    A record goes where Kafka's own clients put its key; those of a shard without a key to one partition. `kafka`: settings of
    another cluster by Kafka's names, with `bootstrap.servers`; without them it is the group's own. `compression` is none, gzip,
    snappy, lz4 or zstd. After `transaction_timeout` seconds brokers abort what was begun and not ended.
    """

    topic: str = ""
    kafka: Mapping[str, str] = {}
    compression: str = "none"
    transaction_timeout: float = 120.0

    _source: KafkaAccess | None = None
    _kafka: Transactions
    _partitions = 0
    # The producer that the last transaction has left, with what counts its records, and where the output stands.
    _producing: tuple[Transaction, Encoder] | None = None
    _stands: Offset = 0

    def reach(self, source: KafkaAccess | None) -> None:
        """How the group's own cluster is reached. Called before `open`."""
        self._source = source

    def open(self, shard: ShardId) -> None:
        """See Output. Who overrides it calls it. Raises OutputsError, and SinkError for a topic that cannot be written to."""
        # Not before: a worker without such an output does not need to have all this in its memory.
        from shardherd.source.encoding.record_encoding import COMPRESSIONS
        from shardherd.transactions.topics import check_topic, connection

        about = type(self).__name__
        if is_of_kinesis(shard):
            raise OutputsError(
                f"output {about} is a KafkaOutput, which keeps positions of Kafka, and shard {shard} is of Kinesis: derive it"
                " from Output, and connect to Kafka in its `open`"
            )
        if not isinstance(self.topic, str) or not self.topic:
            said = "is empty" if self.topic == "" else f"is {self.topic!r}"
            raise OutputsError(f"topic of {about} must be the name of a topic, and {said}")
        if not isinstance(self.compression, str) or self.compression not in COMPRESSIONS:
            raise OutputsError(f"compression of {about} must be one of {', '.join(COMPRESSIONS)}, not {self.compression!r}")
        if wrong := no_timeout(self.transaction_timeout):
            raise OutputsError(f"transaction_timeout of {about} {wrong}")
        self._kafka = connection(*self._access(), STEP_TIMEOUT)
        check_topic(self._kafka, self.topic, [shard])

    def close(self) -> None:
        """See Output. Who overrides it calls it."""
        self._producing = None

    def position(self, grant: ShardGrant) -> Offset:
        """See TransactionalOutput. Whoever has begun to write the shard before writes nothing more when this returns.

        Raises FencedEpochError where who has the shard now has asked for it already, and SinkError.
        """
        from shardherd.source.encoding.record_encoding import Encoder
        from shardherd.transactions.topics import partitions_of

        kafka, output, self._producing = self._kafka, self._output(grant), None
        self._partitions = partitions_of(kafka, self.topic)
        # Looked at first: one that is too late must not fence who has the shard now.
        found, _ = kafka.look(output, [grant.shard])
        _check(found.get(grant.shard), grant)
        transaction = kafka.begin_open(output, grant.shard)()
        _check(transaction.stood, grant)
        stands = output.granted(grant.shard, transaction.stood, grant.start, grant.epoch)
        if stands != transaction.stood:
            kafka.begin_commit(output, transaction, stands)()
        self._stands = stands.position
        self._producing = transaction, Encoder(transaction.producer, self.compression)
        return stands.position

    def write_once(self, records: Sequence[Record], grant: ShardGrant, before: Offset | None, position: Offset) -> None:
        """See TransactionalOutput. Raises SinkError."""
        from shardherd.source.kafka.partitions import partition_of
        from shardherd.transactions.topics import rounds_of

        if self._producing is None:
            self.position(grant)
        if self._stands != before:
            raise MovedPositionError(f"the position of shard {grant.shard} is {self._stands}, and not {before}")
        assert self._producing is not None
        kafka, output, (transaction, encoder) = self._kafka, self._output(grant), self._producing
        self._producing = None  # but for what has succeeded: only an answer tells what another try would do
        keyless = partition_of(grant.shard)[1] % self._partitions
        batches = encoder.encode(_table(records, grant.shard), self._partitions, keyless, int(time.time() * 1000))
        try:
            kafka.begin_send(output, transaction, rounds_of(batches))()
            kafka.begin_commit(output, transaction, output.stored(grant.shard, position, grant.epoch))()
        except BaseException:
            kafka.abort(transaction)
            raise
        self._stands = position
        self._producing = transaction.again(), encoder

    def _output(self, grant: ShardGrant) -> Output:
        from shardherd.transactions.kafka_transactions import Output

        group = f"shardherd.{grant.group}.{self.topic}.{self.name or type(self).__name__}"
        topic_ids = {str(grant.shard): grant.topic_id} if grant.topic_id else {}
        return Output(self.topic, group, self.transaction_timeout, topic_ids)

    def _access(self) -> tuple[str, Security]:
        """Where to write, and how to get there. Raises OutputsError."""
        from shardherd.source.security.kafka_settings import KafkaSettingError, check, security_of

        if not self.kafka:
            if self._source is None:
                raise OutputsError(f"nobody has said where {type(self).__name__} writes: set `kafka` of it, or {BOOTSTRAP}")
            return self._source.bootstrap_servers, self._source.security
        given = dict(self.kafka)
        servers = given.pop("bootstrap.servers", "")
        if not servers:
            raise OutputsError(f"kafka of {type(self).__name__} must have bootstrap.servers, beside {', '.join(sorted(given))}")
        try:
            for name in given:
                check(name)
            return servers, security_of(given)
        except KafkaSettingError as error:
            raise OutputsError(f"kafka of {type(self).__name__}: {error}") from error


def _check(stood: Stored | None, grant: ShardGrant) -> None:
    if stood is not None and stood.epoch > grant.epoch:
        raise FencedEpochError(
            f"shard {grant.shard} was written under epoch {stood.epoch} already, and this consumer was given it under"
            f" {grant.epoch}: it is another one's now",
            shard=grant.shard,
        )


_BYTES = bytes | bytearray | memoryview | None


def _table(records: Sequence[Record], shard: ShardId) -> Any:
    """The records as columns. Raises TypeError for one that a program has made of what is no bytes."""
    import pyarrow as pa

    try:
        made = records_of(shard, records, records[0].offset, records[-1].offset + 1).table
    except TypeError as error:
        for each in records:
            for what, given in (("key", each.key), ("value", each.value)):
                if not isinstance(given, _BYTES):
                    raise TypeError(
                        f"{each.name} has a {what} of type {type(given).__name__}, and Kafka takes bytes: encode it where it"
                        " is made"
                    ) from error
        raise
    return pa.Table.from_batches([made.select(["key", "value", "timestamp", "headers"])])
