"""What a user installs: the wheel with the extra `spark` in an environment of its own, and the ten lines of the page.

Under the oldest Spark that is supported, and under that of the lock file.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from dev.cluster import Cluster
from dev.release.packages import build, uv
from dev.release.source import working_tree
from tests.harness.long import long
from tests.integration.spark.drivers import produce
from tests.integration.spark.page import ten_lines

ROOT = Path(__file__).parents[3]
OF_THE_TESTS = ("PYSPARK_", "SPARK_", "PYTHON", "SHARDHERD_")


def run(*command: object, cwd: Path, **environment: str) -> str:
    """What a command says; it must succeed."""
    kept = {
        name: text for name, text in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_", "PYTHON", "SHARDHERD_"))
    }
    environment = {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1", **environment}
    done = subprocess.run(
        [str(each) for each in command], cwd=cwd, env=kept | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {(done.stdout + done.stderr)[-4000:]}"
    return done.stdout


def constraints(folder: Path, spark: str) -> Path:
    """The versions of the lock file, but of Spark this one: what is tested is the wheel, not what was published today."""
    locked = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements" / "spark.lock").read_text(), re.MULTILINE)
    assert "pyspark" in dict(locked)
    made = folder / "constraints.txt"
    made.write_text("".join(f"{name}=={version}\n" for name, version in (dict(locked) | {"pyspark": spark}).items()))
    return made


@long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("spark", ["4.2.0", pyspark.__version__])
def test_the_wheel_with_its_extra_is_all_that_the_ten_lines_need(
    cluster: Cluster, topic: str, tmp_path: Path, spark: str
) -> None:
    wheel, _ = build(working_tree(ROOT, os.environ), tmp_path / "dist")
    place = tmp_path / "environment"
    run(uv(), "venv", "--python", "3.11", place, cwd=tmp_path)
    versions = ("--constraints", constraints(tmp_path, spark))
    run(uv(), "pip", "install", *versions, f"{wheel}[spark]", cwd=tmp_path, VIRTUAL_ENV=str(place))
    installed = run(uv(), "pip", "freeze", cwd=tmp_path, VIRTUAL_ENV=str(place))
    assert f"pyspark=={spark}\n" in installed
    assert "kopf" not in installed

    written = produce(cluster.kafka_bootstrap, topic, 4, 25)
    script = tmp_path / "clicks.py"
    script.write_text(ten_lines(cluster.kafka_bootstrap, topic, tmp_path))
    path = f"{place / 'bin'}:{os.environ['PATH']}"
    kept = {"NUMBA_CACHE_DIR": str(tmp_path / "compiled")}
    run(place / "bin" / "python", script, cwd=tmp_path, PATH=path, VIRTUAL_ENV=str(place), **kept)
    assert not (tmp_path / "compiled").exists(), "the workers load what was shipped"

    rows = pq.read_table(tmp_path / "clicks").to_pylist()
    assert {(row["shard"], row["offset"]): 1 for row in rows} == written
    assert {row["value"] for row in rows} == {f"{shard.rpartition('/')[2]}:{offset}" for shard, offset in written}
