"""The entrypoints of the Spark image, run here as they are, with a stand-in for what they exec."""

import json
import subprocess
from pathlib import Path

import pytest

DOCKER = Path(__file__).resolve().parents[3] / "docker"


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def driver(tmp_path: Path) -> dict[str, str]:
    program(tmp_path / "bin" / "python", 'echo "$SHARDHERD_START $$ $*"')
    (tmp_path / "run").mkdir()
    return {
        "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
        "SHARDHERD_RUN_DIR": str(tmp_path / "run"),
        "SHARDHERD_TERMINATION_LOG": str(tmp_path / "termination-log"),
    }


def run(script: str, env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([DOCKER / script, *arguments], env=env, capture_output=True, text=True, timeout=30, check=False)


def test_every_start_of_a_pod_has_the_next_number(driver: dict[str, str], tmp_path: Path) -> None:
    for start in (1, 2, 3):
        done = run("driver-entrypoint.sh", driver, "/app.py", "a b", "c")
        pid = (tmp_path / "run" / "pid").read_text().strip()
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{start} {pid} /app.py a b c\n", "")
        assert json.loads((tmp_path / "termination-log").read_text()) == {"start": start}


def test_the_socket_of_the_run_before_is_removed(driver: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "run" / "agent.sock").touch()
    run("driver-entrypoint.sh", driver, "/app.py")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["pid", "starts"]


def test_a_driver_without_an_application_is_refused(driver: dict[str, str]) -> None:
    done = run("driver-entrypoint.sh", driver)
    assert (done.returncode, done.stderr) == (64, "driver-entrypoint.sh: no mainApplicationFile was given\n")


def test_a_driver_without_its_volume_is_refused(driver: dict[str, str]) -> None:
    del driver["SHARDHERD_RUN_DIR"]
    done = run("driver-entrypoint.sh", driver, "/app.py")
    assert done.returncode != 0
    assert "SHARDHERD_RUN_DIR: is not set" in done.stderr


def test_an_executor_is_started_from_what_spark_says(tmp_path: Path) -> None:
    program(tmp_path / "java" / "bin" / "java", 'printf "%s\\n" "$@"')
    env = {
        "PATH": "/usr/bin:/bin",
        "JAVA_HOME": str(tmp_path / "java"),
        "SPARK_HOME": "/spark",
        "SPARK_CONF_DIR": "/conf",
        "SPARK_DRIVER_URL": "spark://d",
        "SPARK_EXECUTOR_ID": "7",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_EXECUTOR_MEMORY": "700m",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.9",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "p-exec-7",
        **{f"SPARK_JAVA_OPT_{number}": f"-Dn={number} x" for number in (10, 2, 1)},
    }
    done = run("executor-entrypoint.sh", env, "executor")
    assert done.stdout.splitlines() == [
        "-Dn=1 x",
        "-Dn=2 x",
        "-Dn=10 x",
        "-Xms700m",
        "-Xmx700m",
        "-cp",
        "/conf:/spark/jars/*",
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", "spark://d"),
        *("--executor-id", "7"),
        *("--cores", "2"),
        *("--app-id", "app"),
        *("--hostname", "10.0.0.9"),
        *("--resourceProfileId", "0"),
        *("--podName", "p-exec-7"),
    ]


def test_an_image_that_is_run_by_hand_says_what_it_is_for() -> None:
    done = run("executor-entrypoint.sh", {"PATH": "/usr/bin:/bin"}, "driver")
    assert (done.returncode, done.stderr.split(".")[0]) == (64, "executor-entrypoint")
