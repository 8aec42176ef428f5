"""For tests of applications: a group that is played in the test's own process, without Kafka and without Kubernetes.

`PlayedGroup` is the real coordinator over in-memory twins of what is outside of it. Nothing of the product imports this.
"""

from shardherd.testing.driver import PlayedDriver
from shardherd.testing.group import PlayedGroup
from shardherd.testing.records import SCHEMA, Record

__all__ = ["SCHEMA", "PlayedDriver", "PlayedGroup", "Record"]
