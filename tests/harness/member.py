"""A live member of a Kafka group that is not ours. Used where a group that somebody else reads must be left alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from kafka import KafkaAdminClient, KafkaConsumer

CLIENT = "a-member"
"""The member's client id, which messages name."""


@contextmanager
def live_member(servers: str, topic: str, group: str, *, within: float = 60.0) -> Iterator[str]:
    """Its client id; it reads on as a real one would until the block ends, and commits nothing.

    The broker is asked whether it has joined: a consumer whose short poll ends in the moment of its joining does not always
    know its own assignment.
    """
    done = threading.Event()

    def read() -> None:
        consumer = KafkaConsumer(topic, bootstrap_servers=servers, group_id=group, client_id=CLIENT, enable_auto_commit=False)
        while not done.is_set():
            consumer.poll(timeout_ms=200)
        consumer.close(autocommit=False)

    thread = threading.Thread(target=read, name=f"member of {group}")
    thread.start()
    try:
        _await_stable(servers, group, time.monotonic() + within)
        yield CLIENT
    finally:
        done.set()
        thread.join()


def _await_stable(servers: str, group: str, deadline: float) -> None:
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        while (state := admin.describe_groups([group])[group]["group_state"]) != "Stable":
            assert time.monotonic() < deadline, f"Kafka's own consumer did not join group {group!r}: it is {state}"
            time.sleep(0.1)
    finally:
        admin.close()
