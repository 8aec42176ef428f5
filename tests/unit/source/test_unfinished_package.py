"""The source takes parts of kafka-python and leaves the rest; an application that wants the rest finds it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

OPERATOR = Path(__file__).parents[3] / "operator"


def run(code: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(OPERATOR)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_reading_imports_neither_the_consumer_nor_the_producer_nor_the_admin_client() -> None:
    code = """
import sys
import shardherd.spark.reader, shardherd.spark.standalone
print([name for name in ("consumer", "producer", "admin", "coordinator") if f"kafka.{name}" in sys.modules])
print("kafka.net.manager" in sys.modules)
"""
    assert run(code) == ["[]", "True"]


def test_an_application_that_wants_the_rest_finds_it_once_and_whole() -> None:
    code = """
import logging, threading
import shardherd.spark.reader
import kafka
found, together = [], threading.Barrier(8)

def ask():
    together.wait()
    found.append((kafka.KafkaConsumer, kafka.KafkaAdminClient))

threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
from kafka import KafkaProducer, __version__
import kafka.consumer
print(len(found), len(set(found)), found[0] == (kafka.consumer.KafkaConsumer, kafka.admin.KafkaAdminClient))
print(type(kafka).__name__, __version__ == kafka.version.__version__, sorted(set(kafka.__all__) - set(dir(kafka))))
print(hasattr(kafka, "nothing"), [type(each).__name__ for each in logging.getLogger("kafka").handlers][:1])
"""
    assert run(code) == ["8 1 True", "module True []", "False ['NullHandler']"]


def test_what_is_imported_already_stays_as_it_is() -> None:
    code = """
import sys, kafka
before = (kafka, type(kafka), len([name for name in sys.modules if name.startswith("kafka")]))
import shardherd.spark
print(before == (sys.modules["kafka"], type(kafka), len([name for name in sys.modules if name.startswith("kafka")])))
"""
    assert run(code) == ["True"]


def test_without_kafka_python_its_absence_is_said_where_it_is_missed() -> None:
    code = """
import sys
sys.path[:] = [path for path in sys.path if "site-packages" not in path]
import shardherd.spark
try:
    import kafka.errors
except ModuleNotFoundError as error:
    print(error)
"""
    assert run(code) == ["No module named 'kafka'"]
