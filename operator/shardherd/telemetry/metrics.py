"""Every metric of shardherd: its name, its help and its labels.

`operator_metrics` makes the operator's instruments of them, the agent of an application and the worker make their own. Must not
import the Prometheus client: a Spark process imports the names for free. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

GROUP = ("namespace", "consumergroup")
"""Labels that every metric of a group has."""

PICTURE = (*GROUP, "source")
"""Labels of what a scrape shows of a group; `source` is the kind of its source."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Name in base units (a counter without `_total`, which the client adds), help, and names of the labels."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


BUILD_INFO = Metric("shardherd_build_info", "Version of shardherd; always 1.", ("version",))
LEADER = Metric("shardherd_leader", "Whether this process leads (1) or not (0).")
CERTIFICATE_UNTIL = Metric(
    "shardherd_certificate_expiry_timestamp_seconds", "When the coordinator's TLS certificate ends; 0 without one."
)
AUTHORITY_UNTIL = Metric(
    "shardherd_authority_expiry_timestamp_seconds",
    "When the authority ends by which consumers believe the coordinator; 0 without one.",
)

# The coordinator.
HEARTBEATS = Metric("shardherd_heartbeats", "Heartbeats answered, by result (ok or an error code).", (*GROUP, "result"))
CHECKPOINTS = Metric(
    "shardherd_checkpoints",
    "Checkpoints of single shards, by result (ok, unchanged, fenced, withheld, error).",
    (*GROUP, "result"),
)
REBALANCES = Metric("shardherd_rebalances", "Steps that moved shards, by reason.", (*GROUP, "reason"))
MOVES = Metric("shardherd_shard_moves", "Shards that changed hands.", GROUP)
CALLERS_REFUSED = Metric(
    "shardherd_callers_refused", "Callers of the API that were not let in, by what did not match.", ("reason",)
)
SOURCE_ERRORS = Metric("shardherd_source_errors", "Requests to the source that failed, by operation.", (*GROUP, "op"))
SOURCE_DURATION = Metric("shardherd_source_request_duration_seconds", "Duration of requests to the source.", ("op",))

# The controller.
RECONCILES = Metric("shardherd_reconcile", "Reconciliations of groups.", GROUP)
RECONCILE_ERRORS = Metric("shardherd_reconcile_errors", "Reconciliations that failed and are tried again.", GROUP)
RECONCILE_DURATION = Metric("shardherd_reconcile_duration_seconds", "Duration of one reconciliation.")
KUBERNETES_REQUESTS = Metric(
    "shardherd_kubernetes_requests",
    "Requests to the Kubernetes API server, by method and resource. Watches are left out.",
    ("method", "resource"),
)
SCALE_DECISIONS = Metric(
    "shardherd_scale_decisions",
    "Decisions on the number of consumers, by direction (up, down, recommended) and reason.",
    (*GROUP, "direction", "reason"),
)
REPLICAS = Metric("shardherd_replicas", "Consumers of a group: desired, current, ready and recommended.", (*GROUP, "kind"))
GROUP_LAG_SECONDS = Metric(
    "shardherd_group_lag_seconds",
    "Age of the oldest record that is not checkpointed, by its timestamp; absent while it is not known.",
    GROUP,
)
GROUP_PRODUCED = Metric("shardherd_group_produced_records_per_second", "Records written a second, over the last minute.", GROUP)
GROUP_CONSUMED = Metric(
    "shardherd_group_consumed_records_per_second", "Records checkpointed a second, over the last minute.", GROUP
)
CONSUMER_RATE = Metric(
    "shardherd_group_consumer_records_per_second", "Records that one consumer reads a second while it has a backlog.", GROUP
)
CONDITION = Metric("shardherd_group_condition", "A group's condition: 1 if True, 0 if not.", (*GROUP, "condition"))

# Pictures of groups, read at each scrape.
SHARD_LAG = Metric("shardherd_shard_lag_records", "Records between a shard's checkpoint and its end.", (*PICTURE, "shard"))
SHARD_CHECKPOINT = Metric(
    "shardherd_shard_committed_offset", "A shard's checkpoint: the next record to read.", (*PICTURE, "shard")
)
SHARD_END = Metric("shardherd_shard_end_offset", "The next offset to be written to a shard.", (*PICTURE, "shard"))
SHARD_OWNER = Metric("shardherd_shard_owner_info", "Who holds a shard; always 1.", (*PICTURE, "shard", "consumer"))
SHARD_STATE_AGE = Metric(
    "shardherd_shard_unowned_seconds", "For how long a shard that should be read has had no holder.", (*PICTURE, "shard")
)
SHARD_VERDICT = Metric(
    "shardherd_shard_verdict_info",
    "How a shard is read, where that is neither OK nor Unknown: Stalled, Stopped, Lagging or Rewound; always 1.",
    (*PICTURE, "shard", "verdict"),
)
GROUP_VERDICTS = Metric(
    "shardherd_group_shards_by_verdict",
    "Shards by how they are read: Stalled, Stopped, Lagging, Rewound, Unknown, OK.",
    (*PICTURE, "verdict"),
)
GROUP_LAG = Metric(
    "shardherd_group_lag_records",
    "Records between the checkpoints and the ends of all shards; absent until this leader has looked at them.",
    PICTURE,
)
GROUP_MAX_LAG = Metric("shardherd_group_max_lag_records", "The largest lag of a single shard.", PICTURE)
GROUP_END = Metric("shardherd_group_end_offset", "Sum of the ends of all shards: what it grows by is what is written.", PICTURE)
GROUP_CHECKPOINT = Metric(
    "shardherd_group_committed_offset", "Sum of the checkpoints of all shards: what it grows by is what is read.", PICTURE
)
GROUP_UNOWNED = Metric(
    "shardherd_group_max_unowned_seconds", "The longest time that a shard that should be read has had no holder.", PICTURE
)
GROUP_WAITING = Metric(
    "shardherd_group_max_waiting_seconds",
    "The longest time that a shard of an ordered group has waited for its parents, as far as this leader knows.",
    PICTURE,
)
GROUP_TRANSFER = Metric(
    "shardherd_group_max_transfer_seconds", "The longest time that a shard has been on its way to another consumer.", PICTURE
)
GROUP_SERIES_OMITTED = Metric(
    "shardherd_group_shard_series_omitted", "Shards whose own series are left out, as the group has too many.", PICTURE
)
GROUP_SHARDS = Metric("shardherd_group_shards", "Shards by state.", (*PICTURE, "state"))
GROUP_EPOCH = Metric("shardherd_group_epoch", "Grows whenever the group's inputs change.", PICTURE)
GROUP_CONSUMERS = Metric("shardherd_group_consumers", "Consumers that heartbeat.", PICTURE)
GROUP_SOURCE_REACHABLE = Metric("shardherd_group_source_reachable", "Whether the last look at the source succeeded.", PICTURE)
CONSUMER_SHARDS = Metric("shardherd_consumer_shards", "Shards that a consumer holds.", (*PICTURE, "consumer"))
HEARTBEAT_AGE = Metric("shardherd_heartbeat_age_seconds", "Time since a consumer's last heartbeat.", (*PICTURE, "consumer"))
CONSUMER_STAGE = Metric(
    "shardherd_consumer_stage",
    "How full a consumer is that reports it: 0 below its low watermark, 1 above low, 2 above high, 3 above flood.",
    (*PICTURE, "consumer"),
)
CONSUMER_USED = Metric(
    "shardherd_consumer_used_ratio",
    "The part of a disk, of memory or of its own gauge that a consumer uses, as it reports it.",
    (*PICTURE, "consumer", "kind", "gauge"),
)

# An application: its agent's own port.
CONSUMER = (*GROUP, "consumer")
AGENT_HEARTBEATS = Metric("shardherd_agent_heartbeats", "Heartbeats sent, by result.", (*CONSUMER, "result"))
AGENT_CHECKPOINTS = Metric("shardherd_agent_checkpoints", "Checkpoints of shards sent, by result.", (*CONSUMER, "result"))
AGENT_SHARDS = Metric("shardherd_agent_shards", "Shards that this consumer reads.", CONSUMER)
AGENT_HEARTBEAT_AGE = Metric("shardherd_agent_heartbeat_age_seconds", "Time since the last acknowledged heartbeat.", CONSUMER)
SOURCE_RECORDS = Metric("shardherd_source_records", "Records of completed batches.", CONSUMER)
SOURCE_BATCHES = Metric("shardherd_source_batches", "Completed batches: micro-batches, or calls of process.", CONSUMER)
SOURCE_BATCH_DURATION = Metric(
    "shardherd_source_batch_duration_seconds", "Time from handing a batch out to knowing it complete.", CONSUMER
)
BATCH_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Upper bounds of its buckets, in seconds. More is shown as the last of them: so long may a sink hold a batch by default."""
SOURCE_POSITION = Metric("shardherd_source_position", "End of the last completed range of a shard.", (*CONSUMER, "shard"))
SOURCE_ROWS = Metric("shardherd_source_rows", "Rows of completed micro-batches, as Spark counted them.", CONSUMER)
SOURCE_PHASES = Metric(
    "shardherd_source_phase_seconds",
    "Time of completed triggers by Spark's phases: addBatch reads, computes and writes, the others plan and log.",
    (*CONSUMER, "phase"),
)
SOURCE_EVENT_TIME = Metric(
    "shardherd_source_event_time_seconds",
    "Time of the last completed record of a shard (that of the newest one in its Kafka batch), in seconds since 1970.",
    (*CONSUMER, "shard"),
)
SOURCE_VALUES = Metric(
    "shardherd_source_values",
    "Typed values that were decoded, by path: fast (compiled), or slow (one by one, as Spark's own parser would).",
    (*CONSUMER, "path"),
)
SOURCE_MALFORMED = Metric("shardherd_source_malformed_values", "Typed values that could not be read.", CONSUMER)
SOURCE_IN_FLIGHT = Metric("shardherd_source_in_flight_records", "Records handed out and not yet completed.", CONSUMER)

# Of plain Python consumers alone. They have the others, too, but for what is Spark's.
WORKER_FAILURES = Metric(
    "shardherd_worker_failures",
    "Calls of a program that failed: initialize, process, shutdown, those of a listener, callback; and of an output that hung.",
    (*CONSUMER, "method"),
)
WORKER_FAILING = Metric("shardherd_worker_failing_shards", "Shards whose last batch failed and is to be tried again.", CONSUMER)
WORKER_LAG = Metric("shardherd_worker_lag_records", "Records of the shards that are held which are not processed.", CONSUMER)
WORKER_SECONDS_BEHIND = Metric(
    "shardherd_worker_behind_seconds",
    "For how many seconds records follow what was fetched, of the shard of Kinesis that is behind most.",
    CONSUMER,
)
WORKER_FETCHED = Metric(
    "shardherd_worker_fetched_bytes", "What was fetched and is not processed, as Kafka has sent it.", CONSUMER
)
WORKER_QUEUED = Metric("shardherd_worker_queued_records", "Records that wait for outputs.", CONSUMER)
WORKER_QUEUED_BYTES = Metric(
    "shardherd_worker_queued_bytes", "About how many bytes the records that wait for outputs have.", CONSUMER
)
WORKER_OUTPUT_RECORDS = Metric("shardherd_worker_output_records", "Records that an output took.", (*CONSUMER, "output"))
WORKER_OUTPUT_RETRIED = Metric(
    "shardherd_worker_output_retried_records", "Records that were sent to an output again.", (*CONSUMER, "output")
)
WORKER_OUTPUT_DROPPED = Metric(
    "shardherd_worker_output_dropped_records",
    "Records that were dropped, as Outputs says: by an output at most once, or by a queue that was full.",
    (*CONSUMER, "output"),
)
WORKER_BAD_RECORDS = Metric(
    "shardherd_worker_bad_records",
    "Records that were not processed as they are, by outcome: skipped or dead-letter (failed too often), truncated (too long).",
    (*CONSUMER, "outcome"),
)
