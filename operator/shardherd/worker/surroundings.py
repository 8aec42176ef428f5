"""What all holdings of a worker share. Made by `worker`. Decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shardherd.client.consumer import AsyncConsumer
from shardherd.client.in_hand import ShardInHand
from shardherd.core.model.nouns import ShardId
from shardherd.source.security.environment import KafkaAccess
from shardherd.worker import asynchronous
from shardherd.worker.counts import Counts
from shardherd.worker.crew import Call, Crew
from shardherd.worker.dead_letters import DeadLetters
from shardherd.worker.listener import AnyListener
from shardherd.worker.makers import check_processor
from shardherd.worker.options import HOLD, Options, WorkerOptionError
from shardherd.worker.processor import AnyProcessor
from shardherd.worker.queueing import Lent, QueueingProcessor
from shardherd.worker.record_processor import RecordProcessor
from shardherd.worker.slots import Slots
from shardherd.worker.stream import Stream


class Surroundings:
    """`adrift` are calls that were given up and have not ended, by shard; `telling` the tasks that call callbacks of saves."""

    def __init__(
        self,
        consumer: AsyncConsumer,
        stream: Stream,
        crew: Crew,
        factory: Callable[[], AnyProcessor],
        options: Options,
        counts: Counts,
        dead_letters: DeadLetters | None = None,
        listener: AnyListener | None = None,
        kafka: KafkaAccess | None = None,
    ) -> None:
        self.consumer = consumer
        self.stream = stream
        self.crew = crew
        self.factory = factory
        self.options = options
        self.counts = counts
        self.dead_letters = dead_letters
        self.listener = listener
        self.kafka = kafka
        self.slots = Slots(options.threads)
        # Apart: a shard that is wanted back must not wait for the batches of others, whose sink may be away.
        self.shutdown_slots = Slots(options.threads)
        self.adrift: dict[ShardId, set[Call]] = {}
        self.telling: set[asyncio.Task[None]] = set()

    def lend(self, processor: AnyProcessor, shard: ShardInHand) -> None:
        """Give a processor with a queue what it needs of the worker. Raises WorkerOptionError if it cannot have this shard, or
        is no processor."""
        check_processor(processor, self.factory)
        if isinstance(processor, asynchronous.AsyncOperator):
            # Again: it may have set attributes of its own when it was made.
            asynchronous.check(processor, type(processor).__name__)
        if not isinstance(processor, RecordProcessor) and self.options.bad_records != HOLD:
            raise WorkerOptionError(
                f"bad_records is {self.options.bad_records!r}, and {type(processor).__name__} has its records in batches, where"
                f" nobody can say which one is bad: make it a RecordProcessor, or set bad_records to {HOLD!r} and tries to 0"
            )
        if isinstance(processor, QueueingProcessor):
            session = self.consumer.session
            fields = session.log_fields(shard.name, shard.epoch)
            processor.lend(Lent(shard, session.settings.group_uid, self.options, self.counts, self.crew, fields, self.kafka))
