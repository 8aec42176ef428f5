"""A shard's position as transaction identifiers of a Delta table: what `delta_table` writes with a commit, and reads again.

The version of one is a number of 63 bits, which an offset of Kafka fits into. A position of Kinesis has up to 56 digits: it has
four of them, each with 18 of the digits, and one commit always sets all four. So whoever else commits a position of the shard
meanwhile is in conflict, as with one. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shardherd.core.model.naming import is_of_kinesis
from shardherd.core.model.nouns import ShardId
from shardherd.transactions.outcomes import TableError

PART = 10**18
"""More than a part of a position can be: each has 18 digits."""

PARTS = 4


def written(app_id: str, shard: str, position: int) -> Iterator[tuple[str, int]]:
    """The application ids and versions that say this position."""
    if not is_of_kinesis(ShardId(shard)):
        yield app_id, position
        return
    for number, part in enumerate(_parts(app_id)):
        yield part, position // PART**number % PART


def read(version_of: Callable[[str], int | None], app_id: str, shard: str) -> int | None:
    """The position that the table has under this application id, None if it has none. Raises TableError."""
    if not is_of_kinesis(ShardId(shard)):
        return version_of(app_id)
    found = [version_of(part) for part in _parts(app_id)]
    versions = [each for each in found if each is not None]
    if not versions:
        return None
    if len(versions) < PARTS:
        raise TableError(
            f"the Delta table has only a part of the position of shard {shard} ({app_id}): somebody has removed transaction "
            "identifiers; give the sink another name, from the checkpoint on up to which the table has all records"
        )
    position: int = sum(version * PART**number for number, version in enumerate(versions))
    return position


def _parts(app_id: str) -> list[str]:
    """The application ids of a position's parts, the one with its last digits first."""
    return [f"{app_id}#{number}" for number in range(PARTS)]
