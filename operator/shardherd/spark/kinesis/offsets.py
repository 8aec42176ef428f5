"""The offsets of a query that reads Kinesis: what Spark logs for a micro-batch, so that a replay needs nothing else.

`{"kinesis": source, "shards": {id: [from, to, over]}, "v": 1}` with sorted keys. `from` is the number of a record that was
there, `to` a position; both are decimals in text, since they have up to 56 digits. `over`: the shard is read to its end.
Decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shardherd.spark.offsets import OffsetsError

VERSION = 1

_OWN = "use a checkpointLocation of its own"


class ShardOffsets(NamedTuple):
    """What a micro-batch has of one shard: start <= number < stop. `over`: there is nothing after it, for good."""

    start: int
    stop: int
    over: bool = False


@dataclass(frozen=True, slots=True)
class KinesisOffsets:
    """Where one micro-batch ends. `source` tells the stream from another of its name; empty before the very first look."""

    source: str = ""
    shards: Mapping[str, ShardOffsets] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For Spark, with every key in sorted order."""
        shards = {shard: [str(each.start), str(each.stop), each.over] for shard, each in sorted(self.shards.items())}
        return {"kinesis": self.source, "shards": shards, "v": VERSION}


def parse(raw: Mapping[str, Any] | str) -> KinesisOffsets:
    """The offsets in `raw`. Raises OffsetsError."""
    found = json.loads(raw) if isinstance(raw, str) else raw
    try:
        if found["v"] != VERSION:
            raise OffsetsError(f"the checkpoint location holds offsets of version {found['v']}, this source writes {VERSION}")
        source = found["kinesis"]
        shards = {
            shard: ShardOffsets(int(start), int(stop), bool(over)) for shard, (start, stop, over) in found["shards"].items()
        }
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, OffsetsError):
            raise
        raise OffsetsError(f"the checkpoint location holds offsets of another source: {str(found)[:200]}; {_OWN}") from error
    return KinesisOffsets(source, shards)
