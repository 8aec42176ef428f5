"""Makes a Spark application a consumer of its ConsumerGroup; `shardherd.spark.session` calls `make_session`, `ranges`
`ranges_now`, and `run_cells` `run_cells_now`.

Decides the SparkSession's configuration from the pod's environment. It must run in the main thread and before any SparkContext:
only there can SIGTERM become a drain, and only then does the stream reader's process inherit the agent's address.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from shardherd.consumer.gauges import Gauges, OwnGauge, measure_of
from shardherd.core.model.nouns import ShardId
from shardherd.core.model.security import Security
from shardherd.spark import driver_logs, python_path
from shardherd.spark.cells import forked
from shardherd.spark.cells.build import Build, CellsError
from shardherd.spark.cells.runner import CELL_PROPERTY
from shardherd.spark.cells.runtime import CellRuntime
from shardherd.spark.link import SOCKET_VARIABLE
from shardherd.spark.network import guarded
from shardherd.spark.pod import Pod, read_pod
from shardherd.spark.progress import ProgressListener
from shardherd.spark.running_batch import BatchRanges, RangesError, Running, of_cell, ranges_of
from shardherd.spark.runtime import AgentRuntime
from shardherd.spark.source import ShardherdSource, make_known
from shardherd.spark.workers import with_workers

DRIVER_PORT = 7078
BLOCK_MANAGER_PORT = 7079

API_SERVER_PATIENCE_MS = 60_000
"""How long an API server may take to answer a driver. By Spark's 10 s a driver that starts while the API server is busy ends in
SparkContext's constructor."""

BATCH_PROPERTY = "streaming.sql.batchId"
"""Spark's local property of a query's thread with the running micro-batch's id; what is called in it, like the function of
foreachBatch, sees it too."""

RUN_PROPERTY = "spark.jobGroup.id"
"""That with the id of the query's run."""

STATE = {
    # State in files that grow by what changed, each with a name of its own: two consumers never write the same file.
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    # How soon a snapshot is stored that was taken. Whoever gains the cell puts in again all that has changed since the last.
    "spark.sql.streaming.stateStore.maintenanceInterval": "10s",
    # A cell is small, and its state's partitions are fixed by its first micro-batch: cells are what runs in parallel.
    "spark.sql.shuffle.partitions": "1",
    # Each cell has a pool, or a large micro-batch of one would keep the others waiting.
    "spark.scheduler.mode": "FAIR",
}
"""What shardherd sets for Spark in a group with cells."""

LONGEST_PREFIX = 46
"""Characters that Spark allows before `-exec-<n>` in an executor's name, less one."""


_runtime: AgentRuntime | CellRuntime | None = None
"""Of this process, once `make_session` has been called: it has one agent at most."""


class SessionError(RuntimeError):
    """`session()` was called in a place where it cannot do its work. Says where it must be called."""


def make_session(name: str | None, conf: Mapping[str, str] | None, gauge: OwnGauge | None = None) -> SparkSession:
    """As `shardherd.spark.session`."""
    if threading.current_thread() is not threading.main_thread():
        raise SessionError("shardherd.spark.session() must be called in the main thread: it installs the handler of SIGTERM")
    if SparkContext._active_spark_context is not None:
        raise SessionError("shardherd.spark.session() must be called before any SparkContext is made in this process")
    pod = read_pod(os.environ)
    driver_logs.set_up(pod, driver_logs.log_format({**pod.spark_conf, **(conf or {})}))
    os.environ[SOCKET_VARIABLE] = str(pod.socket)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    gauges = Gauges(measure_of(os.environ, gauge))
    runtime: AgentRuntime | CellRuntime = CellRuntime(pod, gauges) if pod.state_location else AgentRuntime(pod, gauges)
    runtime.start()
    global _runtime
    _runtime = runtime
    signal.signal(signal.SIGTERM, runtime.terminate)
    builder = SparkSession.builder.appName(name or pod.group)
    settings = session_conf(pod, conf or {})
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _launching(pod, settings):
        spark = builder.getOrCreate()
    make_known(spark, ShardherdSource)
    spark.streams.addListener(ProgressListener(runtime.finished))
    runtime.attach(spark)
    atexit.register(runtime.leave)
    # Before Python's side of the listeners goes away, or the JVM complains of it at length.
    atexit.register(spark.stop)
    return spark


def _launching(pod: Pod, settings: Mapping[str, str]) -> contextlib.AbstractContextManager[None]:
    """While Spark's JVM is started: its processes have our path, and in a group with cells its stream readers are forks."""
    if not pod.state_location or not forked.wanted(settings):
        return python_path.launched()
    address = pod.run_dir / "forks.sock"
    forked.start(address)
    return forked.asked(address)


def ranges_now(batch_id: int) -> BatchRanges:
    """As `shardherd.spark.ranges`."""
    if _runtime is None:
        raise RangesError(
            "ranges() needs a session made by shardherd.spark.session() in a ConsumerGroup: only there does an application "
            "know what it was given to read"
        )
    context = SparkContext._active_spark_context
    cell = None if context is None else context.getLocalProperty(CELL_PROPERTY)
    return ranges_of(_runtime.batch(cell), _runtime.group_uid, batch_id, _running())


def cell_batch_now(cell_id: str, shard: ShardId, batch_id: int) -> BatchRanges:
    """The running micro-batch of a cell, for sinks that write its results: see `running_batch.of_cell`."""
    return of_cell(cell_id, shard, batch_id, _running())


def run_cells_now(build: Build, trigger: str, *, available_now: bool) -> None:
    """As `shardherd.spark.run_cells`."""
    if _runtime is None:
        raise CellsError("run_cells() needs a session made by shardherd.spark.session() in a ConsumerGroup: call that first")
    if not isinstance(_runtime, CellRuntime):
        raise CellsError(
            "run_cells() is for a ConsumerGroup with spec.state, and this one has none: set spec.state.cells and "
            "spec.state.checkpoint, or start a query without state that reads all shards"
        )
    _runtime.run(build, {"availableNow": True} if available_now else {"processingTime": trigger})


def source_access() -> tuple[str, Security]:
    """The brokers of the group's source, and how they are reached, for a sink that writes to them. Raises SessionError."""
    if _runtime is None:
        raise SessionError(
            "the group's Kafka is known only where shardherd.spark.session() was called: call it first, or say where to write "
            "by kafka.bootstrap.servers"
        )
    return _runtime.source_access


def _running() -> Running | None:
    """For which micro-batch this thread works, as Spark has noted for the jobs that are started in it."""
    context = SparkContext._active_spark_context
    batch_id = None if context is None else context.getLocalProperty(BATCH_PROPERTY)
    if context is None or batch_id is None:
        return None
    return Running(str(context.getLocalProperty(RUN_PROPERTY)), int(batch_id))


def session_conf(pod: Pod, conf: Mapping[str, str]) -> dict[str, str]:
    """All that the session is made with: of what shardherd, the group's sparkConf and the application say, the last wins."""
    said = {**pod.spark_conf, **conf}
    return guarded(with_workers({**spark_conf(pod), **driver_logs.spark_conf(pod, driver_logs.log_format(said)), **said}))


def spark_conf(pod: Pod) -> dict[str, str]:
    """What shardherd sets for Spark; the user's sparkConf wins over it."""
    found = {
        "spark.driver.memory": pod.driver_memory,
        "spark.driver.extraJavaOptions": "-XX:+ExitOnOutOfMemoryError",
        "spark.sql.streaming.checkpointLocation": pod.checkpoint_location,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(STATE if pod.state_location else {}),
    }
    executors = pod.executors
    if not executors.instances:
        return {
            **found,
            "spark.master": f"local[{pod.driver_cores}]",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": str(Path.cwd()),  # the pod's work volume
        }
    found |= {
        "spark.master": "k8s://https://kubernetes.default.svc",
        "spark.submit.deployMode": "client",
        "spark.driver.host": pod.driver_host or pod.pod_ip,
        # Executors are sent to the address that is bound, so it must be one that they can reach.
        "spark.driver.bindAddress": pod.pod_ip or "0.0.0.0",
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCK_MANAGER_PORT),
        **_number_of_executors(pod),
        "spark.executor.cores": str(executors.cores),
        "spark.executor.memory": executors.memory,
        # Outside the heap: a Python worker for every core with numba, Arrow and 64 MiB of answers, beside the JVM's own. Spark
        # makes it the limit, too.
        "spark.executor.memoryOverheadFactor": "0.4",
        "spark.executor.minMemoryOverhead": f"{384 + 384 * executors.cores}m",
        # As for drivers: a share of a core is asked for, and what is idle may be used.
        "spark.kubernetes.executor.request.cores": f"{250 * executors.cores}m",
        "spark.kubernetes.namespace": pod.namespace,
        "spark.kubernetes.driver.requestTimeout": str(API_SERVER_PATIENCE_MS),
        "spark.kubernetes.driver.connectionTimeout": str(API_SERVER_PATIENCE_MS),
        "spark.kubernetes.driver.pod.name": pod.session.consumer,
        "spark.kubernetes.container.image": executors.image,
        "spark.kubernetes.container.image.pullPolicy": executors.image_pull_policy,
        # The controller deletes them: their terminated status is proof that nothing of this run reads any more. An unordered
        # group needs no such proof, and Spark deletes those that it gives back.
        "spark.kubernetes.executor.deleteOnTermination": "false" if pod.session.ordered or executors.least is None else "true",
        # There is none of Spark's: the driver's Service is the group's, and drivers may not write Services.
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.executor.podNamePrefix": f"{pod.session.consumer}-{pod.session.incarnation.start}"[
            -LONGEST_PREFIX:
        ].lstrip("-"),
    }
    labels = {
        "app.kubernetes.io/name": "shardherd",
        "app.kubernetes.io/managed-by": "shardherd",
        "app.kubernetes.io/component": "executor",
        "shardherd.dev/consumergroup": pod.group,
        "shardherd.dev/consumer": pod.session.consumer,
        "shardherd.dev/incarnation": f"{pod.session.incarnation.pod_uid}.{pod.session.incarnation.start}",
    }
    found |= {f"spark.kubernetes.executor.label.{key}": value for key, value in labels.items()}
    if executors.service_account:
        found["spark.kubernetes.authenticate.executor.serviceAccountName"] = executors.service_account
    if executors.cpu_limit:
        found["spark.kubernetes.executor.limit.cores"] = executors.cpu_limit
    if cache := os.environ.get("NUMBA_CACHE_DIR"):
        found["spark.executorEnv.NUMBA_CACHE_DIR"] = cache
    if executors.template:
        template = Path(tempfile.gettempdir()) / "shardherd-executor.json"
        template.write_text(executors.template)
        found["spark.kubernetes.executor.podTemplateFile"] = str(template)
    return found


def _number_of_executors(pod: Pod) -> dict[str, str]:
    executors = pod.executors
    if executors.least is None:
        return {"spark.executor.instances": str(executors.instances)}
    return {
        "spark.dynamicAllocation.enabled": "true",
        # There is no shuffle service: an executor whose shuffle data may be needed stays.
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.initialExecutors": str(executors.least),
        "spark.dynamicAllocation.minExecutors": str(executors.least),
        "spark.dynamicAllocation.maxExecutors": str(executors.instances),
    }
