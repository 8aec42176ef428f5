"""Outputs for tests: each notes what it took, and does what the test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.worker import Output, Outputs, Record, ShardGrant, TransactionalOutput

Answer = Callable[[list[Offset]], Any]


class Place:
    """Where an output writes: `batches` as they were given, `took` what was taken, in order.

    `answers` are called with the offsets of the next batches: they return those that are not taken, raise, or wait.
    """

    def __init__(self, *answers: Answer) -> None:
        self.batches: list[list[Offset]] = []
        self.took: list[Offset] = []
        self.values: list[bytes | None] = []
        self.calls: list[str] = []
        self.answers = list(answers)

    async def write(self, records: Sequence[Record]) -> list[Record]:
        offsets = [record.offset for record in records]
        self.batches.append(offsets)
        self.calls.append("write")
        answer = self.answers.pop(0) if self.answers else None
        refused = answer(offsets) if answer is not None else ()
        if hasattr(refused, "__await__"):
            refused = await refused
        taken = [record for record in records if record.offset not in (refused or ())]
        self.took += [record.offset for record in taken]
        self.values += [record.value for record in taken]
        return [record for record in records if record.offset in (refused or ())]


def output(place: Place, name: str = "place") -> Callable[[], Output]:
    class Writes(Output):
        def __init__(self) -> None:
            self.name = name

        async def open(self, shard: ShardId) -> None:
            place.calls.append(f"open {shard}")

        async def write(self, records: Sequence[Record]) -> list[Record]:
            return await place.write(records)

        async def close(self) -> None:
            place.calls.append("close")

    return Writes


class Table(Place):
    """Keeps its position beside what it took. `lies`: the next commits happen, and say that they did not."""

    def __init__(self, *answers: Answer, position: Offset | None = None) -> None:
        super().__init__(*answers)
        self.stands: Offset | None = position
        self.lies = 0
        self.asked = 0
        self.epochs: list[int] = []


def table_output(table: Table, name: str = "table") -> Callable[[], TransactionalOutput]:
    class Keeps(TransactionalOutput):
        def __init__(self) -> None:
            self.name = name

        async def position(self, grant: ShardGrant) -> Offset | None:
            table.asked += 1
            return table.stands

        async def write_once(
            self, records: Sequence[Record], grant: ShardGrant, before: Offset | None, position: Offset
        ) -> None:
            if before != table.stands:
                raise RuntimeError(f"the position is {table.stands}, and not {before}")
            answer = table.answers.pop(0) if table.answers else None
            offsets = [record.offset for record in records]
            table.batches.append(offsets)
            if answer is not None and hasattr(waits := answer(offsets), "__await__"):
                await waits
            table.took += offsets
            table.stands = position
            table.epochs.append(grant.epoch)
            if table.lies:
                table.lies -= 1
                raise ConnectionError("nobody knows whether that was committed")

    return Keeps


def outputs(*makes: Callable[[], Output], **attributes: Any) -> type[Outputs]:
    """A class of Outputs with these, and with these attributes."""
    return type("Drawn", (Outputs,), {"outputs": makes, "batch_size": 5, **attributes})


def refuses(*offsets: Offset) -> Answer:
    return lambda _: offsets


def raises(error: BaseException) -> Answer:
    def answer(_: list[Offset]) -> None:
        raise error

    return answer


def fails_once(offset: Offset) -> Callable[[Outputs, Record], Record]:
    """A `select` that fails for this record when it is given first."""
    failing = [offset]

    def select(_: Outputs, record: Record) -> Record:
        if record.offset in failing:
            failing.remove(record.offset)
            raise ValueError("not yet")
        return record

    return select


def waits_for(event: Any) -> Answer:
    async def wait() -> None:
        await event.wait()

    return lambda _: wait()
