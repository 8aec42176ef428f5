"""The typed client of the coordinator, for any Python program. It needs nothing of the operator's packages.

`AsyncConsumer` and `Consumer` do all that a consumer has to; `AsyncConsumerClient` and `ConsumerClient` are the raw calls.
Groups are created and changed as custom resources: see `shardherd.client.groups`, which needs the package `kubernetes`.
"""

from shardherd.client.aio import AsyncConsumerClient
from shardherd.client.consumer import AsyncConsumer
from shardherd.client.in_hand import ShardInHand
from shardherd.client.sync import Consumer, ConsumerClient, ShardBeingRead

__all__ = ["AsyncConsumer", "AsyncConsumerClient", "Consumer", "ConsumerClient", "ShardBeingRead", "ShardInHand"]
