"""The settings of a driver pod, from environment variables that the controller sets.

Read once by `application`; everything else gets the parsed value. It holds no defaults for what only the controller can know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shardherd.consumer.settings_given import LARGEST, MOST_MILLIS, MOST_PORT, whole_in
from shardherd.core.consumer.settings import SessionSettings
from shardherd.core.model.nouns import ConsumerId, Incarnation
from shardherd.core.model.security import Security
from shardherd.source.kinesis.environment import STREAM, stream_settings
from shardherd.source.security.environment import BOOTSTRAP, json_object, read_access

REQUIRED = (
    "SHARDHERD_GROUP",
    "SHARDHERD_GROUP_UID",
    "SHARDHERD_NAMESPACE",
    "SHARDHERD_CONSUMER",
    "SHARDHERD_POD_UID",
    "SHARDHERD_START",
    "SHARDHERD_COORDINATOR_URL",
    "SHARDHERD_TOKEN_FILE",
    "SHARDHERD_RUN_DIR",
    BOOTSTRAP,
    "SHARDHERD_CHECKPOINT_PATH",
)
"""A pod that reads Kinesis has the stream in the place of where Kafka is."""


class NotInPodError(RuntimeError):
    """The environment is not that of a driver pod. Names every variable that is missing or wrong."""


@dataclass(frozen=True, slots=True)
class Executors:
    """Executor pods of a driver. `instances` 0: the driver runs everything itself.

    With `least` Spark runs that many to `instances`, as it needs them (dynamic allocation).
    """

    instances: int
    least: int | None
    cores: int
    cpu_limit: str
    memory: str
    template: str
    service_account: str
    image: str
    image_pull_policy: str


@dataclass(frozen=True, slots=True)
class Pod:
    """One driver pod's settings; `session` has its consumer's. Durations are in seconds; a `metrics_port` of 0 serves nothing.

    `state_location` is where the state of a group with cells is kept, empty in others.
    `read_committed` is None where the ConsumerGroup leaves the isolation level to the query. `kinesis` says how the stream is
    reached that is read in the place of Kafka: stream, region, endpoint and the folder of credentials.
    """

    namespace: str
    group: str
    session: SessionSettings
    pod_ip: str
    coordinator_url: str
    coordinator_ca_file: Path | None
    token_file: Path
    run_dir: Path
    bootstrap_servers: str
    security: Security
    read_committed: bool | None
    kinesis: Mapping[str, str] | None
    grace_period: float
    spark_conf: Mapping[str, str]
    checkpoint_path: str
    driver_host: str
    driver_cores: int
    driver_memory: str
    executors: Executors
    metrics_port: int
    metrics_digest_file: Path | None
    state_location: str

    @property
    def socket(self) -> Path:
        """Where the agent listens for the stream reader."""
        return self.run_dir / "agent.sock"

    @property
    def worker_address(self) -> str:
        """Where Spark's Python workers reach this process."""
        return (self.pod_ip or self.driver_host) if self.executors.instances else "127.0.0.1"

    @property
    def slots(self) -> int:
        """How many tasks can run at once; with dynamic allocation to begin with."""
        executors = self.executors
        if not executors.instances:
            return max(1, self.driver_cores)
        return max(1, executors.instances if executors.least is None else executors.least) * max(1, executors.cores)

    @property
    def checkpoint_location(self) -> str:
        """Spark's checkpoint folder of this group and pod; a query adds its name."""
        return f"{self.checkpoint_path.rstrip('/')}/{self.session.group_uid}/{self.session.consumer}"


def read_pod(environment: Mapping[str, str]) -> Pod:
    """The pod's settings. Raises NotInPodError."""
    given = {BOOTSTRAP: environment.get(STREAM), **{name: text for name, text in environment.items() if text}}
    missing = [name for name in REQUIRED if not given.get(name)]
    if missing:
        raise NotInPodError(
            f"shardherd.spark.session() runs inside a driver pod of a ConsumerGroup; not set here: {', '.join(missing)}. "
            "Apply a ConsumerGroup whose application runs this file, or set these variables to try it outside"
        )

    def whole(name: str, default: int, *, least: int = 0, most: int = LARGEST) -> int:
        try:
            return whole_in(environment, name, default, least=least, most=most)
        except ValueError as error:
            raise NotInPodError(str(error)) from None

    def seconds(name: str, default: float, *, least: int = 0) -> float:
        return whole(name, round(default * 1000), least=least, most=MOST_MILLIS) / 1000

    try:
        kafka, kinesis = read_access(environment), stream_settings(environment)
        spark_conf = {key: str(value) for key, value in json_object(environment, "SHARDHERD_SPARK_CONF").items()}
    except ValueError as error:
        raise NotInPodError(str(error)) from error
    drain_timeout = seconds("SHARDHERD_DRAIN_TIMEOUT_MS", 60)
    namespace, group = environment["SHARDHERD_NAMESPACE"], environment["SHARDHERD_GROUP"]
    return Pod(
        namespace=namespace,
        group=group,
        session=SessionSettings(
            group_uid=environment["SHARDHERD_GROUP_UID"],
            consumer=ConsumerId(environment["SHARDHERD_CONSUMER"]),
            incarnation=Incarnation(environment["SHARDHERD_POD_UID"], whole("SHARDHERD_START", 1, least=1)),
            zone=environment.get("SHARDHERD_ZONE", ""),
            capacity=whole("SHARDHERD_CAPACITY", 1, least=1),
            heartbeat_interval=seconds("SHARDHERD_HEARTBEAT_INTERVAL_MS", 3, least=1),
            session_timeout=seconds("SHARDHERD_SESSION_TIMEOUT_MS", 45, least=1),
            coordinator_loss_limit=seconds("SHARDHERD_COORDINATOR_LOSS_LIMIT_MS", 300),
            drain_timeout=drain_timeout,
            ordered=environment.get("SHARDHERD_ORDERED", "false") == "true",
            group=f"{namespace}/{group}",
        ),
        pod_ip=environment.get("SHARDHERD_POD_IP", ""),
        coordinator_url=environment["SHARDHERD_COORDINATOR_URL"],
        coordinator_ca_file=Path(ca_file) if (ca_file := environment.get("SHARDHERD_COORDINATOR_CA_FILE")) else None,
        token_file=Path(environment["SHARDHERD_TOKEN_FILE"]),
        run_dir=Path(environment["SHARDHERD_RUN_DIR"]),
        bootstrap_servers=kafka.bootstrap_servers,
        security=kafka.security,
        read_committed=kafka.read_committed,
        kinesis=kinesis,
        grace_period=seconds("SHARDHERD_GRACE_PERIOD_MS", drain_timeout + 30),
        spark_conf=spark_conf,
        checkpoint_path=environment["SHARDHERD_CHECKPOINT_PATH"],
        driver_host=environment.get("SHARDHERD_DRIVER_HOST", ""),
        driver_cores=whole("SHARDHERD_DRIVER_CORES", 1),
        driver_memory=environment.get("SHARDHERD_DRIVER_MEMORY") or "1g",
        executors=Executors(
            instances=whole("SHARDHERD_EXECUTOR_INSTANCES", 0),
            least=whole("SHARDHERD_EXECUTOR_LEAST", 0) if environment.get("SHARDHERD_EXECUTOR_LEAST") else None,
            cores=whole("SHARDHERD_EXECUTOR_CORES", 1),
            cpu_limit=environment.get("SHARDHERD_EXECUTOR_CPU_LIMIT", ""),
            memory=environment.get("SHARDHERD_EXECUTOR_MEMORY") or "1g",
            template=environment.get("SHARDHERD_EXECUTOR_TEMPLATE", ""),
            service_account=environment.get("SHARDHERD_EXECUTOR_SERVICE_ACCOUNT", ""),
            image=environment.get("SHARDHERD_IMAGE", ""),
            image_pull_policy=environment.get("SHARDHERD_IMAGE_PULL_POLICY") or "IfNotPresent",
        ),
        metrics_port=whole("SHARDHERD_METRICS_PORT", 0, most=MOST_PORT),
        state_location=environment.get("SHARDHERD_STATE_LOCATION", ""),
        metrics_digest_file=Path(file) if (file := environment.get("SHARDHERD_METRICS_DIGEST_FILE")) else None,
    )
