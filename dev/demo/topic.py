"""Makes, grows and removes the demo's topic, and says what is committed. A script of its own: it runs in a pod of the demo.

Started by `dev.demo.visit` through kubectl, where only the cluster reaches the broker. It needs nothing but kafka-python.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError


def main() -> int:
    """Do one of it. What is asked for is printed as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=["create", "grow", "delete", "committed"])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=0)
    parser.add_argument("--group", default="")
    options = parser.parse_args()
    admin = KafkaAdminClient(bootstrap_servers=options.bootstrap)
    if options.do == "create":
        try:
            admin.create_topics({options.topic: {"num_partitions": options.partitions}})
        except TopicAlreadyExistsError:
            sys.stderr.write(f"topic {options.topic} exists already; it is left as it is\n")
            return 1
    elif options.do == "grow":
        admin.create_partitions({options.topic: options.partitions})
    elif options.do == "delete":
        try:
            admin.delete_topics([options.topic])
        except UnknownTopicOrPartitionError:
            sys.stderr.write(f"there is no topic {options.topic}\n")
        _forget(admin, options.group)
    else:
        sys.stdout.write(json.dumps(positions(admin, options.bootstrap, options.topic, options.group)))
    admin.close()
    return 0


def _forget(admin: KafkaAdminClient, group: str) -> None:
    """Delete the group's offsets. The broker may still hold its last transaction open for a moment."""
    deadline = time.monotonic() + 30
    while True:
        said = str(admin.delete_groups([group]))
        if "NonEmptyGroup" not in said or time.monotonic() > deadline:
            sys.stderr.write(f"{said}\n")
            return
        time.sleep(1)


def positions(admin: KafkaAdminClient, bootstrap: str, topic: str, group: str) -> dict[str, list[int]]:
    """By partition: what is committed (-1: nothing), and the end."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
    ends = consumer.end_offsets(partitions)
    consumer.close()
    offsets = admin.list_group_offsets({group: partitions})[group]
    return {str(each.partition): [offsets[each].offset if each in offsets else -1, ends[each]] for each in partitions}


if __name__ == "__main__":
    sys.exit(main())
