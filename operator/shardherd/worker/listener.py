"""What a user writes to be told of shards as they come and go: a listener, one for all shards of a worker.

`telling` calls it. Decides nothing.
"""

from __future__ import annotations

from typing import Any, Protocol

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.worker.processor import Checkpoint


class Listener:
    """Told of each shard by itself, as shards move one by one. For one shard never two methods at once, nor one beside its
    processor's; for several shards maybe at the same time. Each may be a coroutine."""

    def on_assigned(self, shard: ShardId, position: Offset) -> Any:
        """This shard is ours, and is read from this position on: before its processor is made. If it raises, it is called
        again after a while, and nothing is read before."""

    def on_revoked(self, shard: ShardId, checkpoint: Checkpoint) -> Any:
        """It is about to be given up, or this worker ends: after its last record, before `shutdown`. It is ours until this
        returns, so saves go through."""

    def on_lost(self, shard: ShardId) -> Any:
        """In place of `on_revoked`: it is somebody else's already, or was given up while its processor still ran. Nothing of it
        can be saved any more."""


METHODS = ("on_assigned", "on_revoked", "on_lost")


class AnyListener(Protocol):
    """Whatever has the three methods, each a function or a coroutine."""

    def on_assigned(self, shard: ShardId, position: Offset, /) -> Any: ...

    def on_revoked(self, shard: ShardId, checkpoint: Any, /) -> Any: ...

    def on_lost(self, shard: ShardId, /) -> Any: ...
