"""How Spark has its Python workers: which daemon forks them, what it has imported before it does, how they are connected."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shardherd.spark import alone, application
from shardherd.spark.pod import read_pod
from shardherd.spark.workers import with_workers
from tests.unit.spark.test_pod import POD
from tests.unit.without_pandas import WITHOUT_PANDAS

ROOT = Path(__file__).parents[3]
DAEMON = "spark.python.daemon.module"
SOCKETS = "spark.python.unix.domain.socket.enabled"


def run(code: str) -> list[str]:
    # Spark gives its processes as many as a task has CPUs.
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_ours_forks_them_where_the_user_has_said_nothing(caplog: pytest.LogCaptureFixture) -> None:
    found = with_workers({"spark.ui.enabled": "false"})

    assert found == {"spark.ui.enabled": "false", DAEMON: "shardherd.spark.daemon", SOCKETS: "true"}
    assert caplog.messages == []


def test_a_users_own_stays_and_the_log_names_both(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert with_workers({DAEMON: "theirs.daemon"}) == {DAEMON: "theirs.daemon", SOCKETS: "true"}

    assert caplog.messages == [
        "spark.python.daemon.module is theirs.daemon and stays so: every Python worker imports for itself what reading takes, "
        "which shardherd.spark.daemon would do once"
    ]


def test_a_user_who_names_ours_hears_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert with_workers({DAEMON: "shardherd.spark.daemon"}) == {DAEMON: "shardherd.spark.daemon", SOCKETS: "true"}
    assert caplog.messages == []


def test_they_are_connected_by_unix_domain_sockets_unless_the_user_says_otherwise() -> None:
    assert with_workers({SOCKETS: "false"}) == {DAEMON: "shardherd.spark.daemon", SOCKETS: "false"}


@pytest.mark.parametrize(
    ("folder", "connected"),
    [("/tmp/volumes", True), ("/" + 39 * "t", True), ("/" + 40 * "t", False), ("/" + 20 * "\u00e4", False)],
)
def test_they_are_connected_by_tcp_where_the_path_of_a_socket_would_be_too_long(
    monkeypatch: pytest.MonkeyPatch, folder: str, connected: bool
) -> None:
    found = [
        with_workers({"spark.python.unix.domain.socket.dir": folder}),
        with_workers({"spark.driver.extraJavaOptions": f"-Xss2m -Djava.io.tmpdir={folder} -Xmx1g"}),
        with_workers({"spark.executor.extraJavaOptions": f'"-Djava.io.tmpdir={folder}"'}),
    ]
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f'"-Djava.io.tmpdir={folder}" -Xss2m')
    found += [with_workers({}), with_workers({"spark.python.unix.domain.socket.dir": "/tmp"})]

    assert [SOCKETS in each for each in found] == [*4 * [connected], True]


def test_a_session_has_it_and_whoever_names_another_one_wins() -> None:
    group = {"SHARDHERD_SPARK_CONF": json.dumps({DAEMON: "of.the.group"})}
    found = [
        alone.session_conf({})[DAEMON],
        alone.session_conf({DAEMON: "of.the.application"})[DAEMON],
        application.session_conf(read_pod(POD), {})[DAEMON],
        application.session_conf(read_pod({**POD, **group}), {})[DAEMON],
        application.session_conf(read_pod({**POD, **group}), {DAEMON: "of.the.application"})[DAEMON],
    ]

    assert found == [
        "shardherd.spark.daemon",
        "of.the.application",
        "shardherd.spark.daemon",
        "of.the.group",
        "of.the.application",
    ]


FORKING = (
    WITHOUT_PANDAS
    + """
import os
from shardherd.spark import daemon
from shardherd.source.compiled import machine_code
from shardherd.source.compiled.compiling import libraries
for library in libraries():
    library.prepare()
with daemon._stdout_aside():
    print("what an import prints")
    daemon.load()
before = set(sys.modules)
import numpy, pyarrow
threads = len(os.listdir("/proc/self/task"))

OURS = ("shardherd", "pyspark", "pyarrow", "numpy", "llvmlite", "kafka")

def forked(work):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, repr(work()).encode())
        os._exit(0)
    os.close(writing)
    os.wait()
    return os.fdopen(reading).read()

def work():
    from shardherd.spark import reader, source
    from shardherd.source.decoding import compiled_records
    from shardherd.source.values.value_format import ValueFormat
    import pyspark.worker
    found = compiled_records.count_batches(numpy.zeros(5, numpy.uint8))
    json = ValueFormat("json", "a string").decoder("UTC").decode(pyarrow.array([b'{"a":"x"}'])).values.to_pylist()
    return found, json, sorted(name for name in set(sys.modules) - before if name.startswith(OURS)), "numba" in sys.modules

print(threads)
print(forked(work))
print(forked(lambda: numpy.random.random()) != forked(lambda: numpy.random.random()))
"""
)


def test_a_fork_reads_and_imports_nothing_and_draws_random_numbers_of_its_own() -> None:
    threads, worked, unlike = run(FORKING)

    assert threads == "1", "only the thread that forks is there in the fork: a lock that another one holds stays locked"
    assert worked == "(0, [{'a': 'x'}], [], False)"
    assert unlike == "True"


USING_MEMORY = """
import resource
from shardherd.spark import daemon
daemon.keep_memory()

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = bytearray(daemon.KEPT_BLOCK - 4096)
    block[::4096] = b"x" * len(block[::4096])
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print([faults() < 100 for _ in range(3)])
"""


def test_memory_that_was_given_back_is_used_again_and_not_cleared_by_the_kernel() -> None:
    assert run(USING_MEMORY) == ["[True, True, True]"]


ANSWERING = """
def main(infile, outfile):
    infile.read()
    outfile.write(b"a last word")
"""
"""In the place of `pyspark.worker`: it writes once the other end is closed."""


def test_a_worker_whose_last_word_nobody_reads_ends_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "pyspark_answering.py").write_text(ANSWERING)
    # As Spark gives it to its daemons.
    sockets = {"PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": str(tmp_path)}
    sockets |= {"PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"}
    environment = {**os.environ, **sockets, "PYTHONPATH": f"{tmp_path}:{ROOT / 'operator'}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "shardherd.spark.daemon", "pyspark_answering"]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address = process.stdout.read(int.from_bytes(process.stdout.read(4), "big")).decode()
        with socket.socket(socket.AF_UNIX) as planner:
            planner.connect(address)
            worker = int.from_bytes(planner.recv(4), "big")
            # As a planner does that has its answer.
            planner.shutdown(socket.SHUT_WR)
            planner.shutdown(socket.SHUT_RD)
        ended = os.pidfd_open(worker)
        select.select([ended], [], [])
        os.close(ended)
        process.send_signal(signal.SIGTERM)
        said = process.communicate()[1].decode()

    assert said == ""
