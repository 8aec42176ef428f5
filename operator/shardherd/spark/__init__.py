"""shardherd in a Spark application: `session()` starts the agent and registers `format("shardherd")`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["session"]


def session(name: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """The SparkSession of this consumer, with the agent running beside it and `format("shardherd")` registered.

    Call it first, in the main thread. `name` is the application's name (default: the group's), `conf` overrides what the
    ConsumerGroup says. Raises NotInPodError outside a driver pod, SessionError when called too late or in another thread.
    """
    # Spark's workers import this package for the reader alone; they must not pay for the driver's side.
    from shardherd.spark.application import make_session

    return make_session(name, conf)
