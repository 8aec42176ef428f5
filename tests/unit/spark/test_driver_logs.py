"""How a driver logs, as its entrypoint sets it up: tried in a process of its own, as logging is set up once in each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardherd.spark.application import session_conf
from shardherd.spark.driver_logs import LOG4J, LOG_FORMAT, LogFormatError, log_format
from shardherd.spark.pod import read_pod
from tests.unit.spark.test_pod import EXECUTORS, POD

WHOSE = {"group": "demo/clicks", "consumer": "clicks-0", "incarnation": "pod-uid.3"}

DRIVER = """
import logging, os
from shardherd.spark import driver_logs
from shardherd.spark.pod import read_pod
from shardherd.telemetry.logs import fields
{before}
pod = read_pod(os.environ)
driver_logs.set_up(pod, driver_logs.log_format(pod.spark_conf))
log = logging.getLogger("shardherd.spark.agent")
log.debug("unseen")
log.info("got %d shards", 3, extra=fields(shard="clicks/0", epoch=4))
logging.getLogger("py4j").info("unseen")
try:
    raise ValueError("broken")
except ValueError:
    logging.getLogger("application").exception("it failed")
"""


def logged(conf: dict[str, str], before: str = "") -> list[str]:
    """The lines of a driver with this sparkConf."""
    environment = {**os.environ, **POD, "SHARDHERD_SPARK_CONF": json.dumps(conf), "PYTHONPATH": os.pathsep.join(sys.path)}
    script = DRIVER.format(before=before)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_with_the_switch_every_line_is_json_with_the_operators_fields_and_whose_it_is() -> None:
    agents, applications = (json.loads(line) for line in logged({LOG_FORMAT: "json"}))
    assert agents.pop("time").endswith("Z")
    assert agents == {
        "level": "INFO",
        "logger": "shardherd.spark.agent",
        "message": "got 3 shards",
        **WHOSE,
        "shard": "clicks/0",
        "epoch": 4,
    }
    assert "ValueError: broken" in applications.pop("exception")
    assert {name: applications[name] for name in ("level", "logger", "message")} == {
        "level": "ERROR",
        "logger": "application",
        "message": "it failed",
    }
    assert applications.items() >= WHOSE.items()


@pytest.mark.parametrize("conf", [{}, {LOG_FORMAT: "text"}])
def test_without_it_the_agents_log_is_text_and_the_applications_is_its_own(conf: dict[str, str]) -> None:
    first, *others = logged(conf)
    assert first.endswith("INFO    shardherd.spark.agent: got 3 shards shard=clicks/0 epoch=4")
    assert (others[0], others[-1]) == ("it failed", "ValueError: broken")


def test_what_the_application_has_set_up_stays() -> None:
    before = "logging.basicConfig(format='mine %(message)s', level='INFO')"
    assert logged({LOG_FORMAT: "json"}, before)[0] == "mine got 3 shards"


def test_the_jvms_of_driver_and_executors_get_the_same() -> None:
    pod = read_pod({**POD, **EXECUTORS, "SHARDHERD_SPARK_CONF": json.dumps({LOG_FORMAT: "JSON"})})
    conf = session_conf(pod, {})
    options = conf["spark.driver.defaultJavaOptions"]
    assert options == conf["spark.executor.defaultJavaOptions"]
    assert options.split() == [
        f"-Dlog4j2.configurationFile={LOG4J.as_uri()}",
        *(f"-Dshardherd.{name}={value}" for name, value in WHOSE.items()),
    ]
    assert LOG4J.is_file()
    # The application has the last word.
    assert [key for key in session_conf(pod, {LOG_FORMAT: "text"}) if "defaultJavaOptions" in key] == []
    assert session_conf(pod, {"spark.driver.defaultJavaOptions": "-X"})["spark.driver.defaultJavaOptions"] == "-X"


def test_a_path_with_a_space_is_one_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardherd.spark.driver_logs.LOG4J", Path("/srv/my python/log4j2-json.properties"))
    pod = read_pod({**POD, "SHARDHERD_SPARK_CONF": json.dumps({LOG_FORMAT: "json"})})
    first, *others = session_conf(pod, {})["spark.driver.defaultJavaOptions"].split()
    assert first == "-Dlog4j2.configurationFile=file:///srv/my%20python/log4j2-json.properties"
    assert len(others) == len(WHOSE)


def test_by_default_nothing_of_spark_changes() -> None:
    assert [key for key in session_conf(read_pod(POD), {}) if "defaultJavaOptions" in key] == []


def test_sparks_own_page_is_off_unless_the_group_or_the_application_asks_for_it() -> None:
    asked = read_pod({**POD, "SHARDHERD_SPARK_CONF": json.dumps({"spark.ui.enabled": "true"})})
    given = [
        session_conf(read_pod(POD), {}),
        session_conf(asked, {}),
        session_conf(read_pod(POD), {"spark.ui.enabled": "true"}),
    ]
    assert [conf["spark.ui.enabled"] for conf in given] == ["false", "true", "true"]


def test_another_format_is_refused_by_name() -> None:
    with pytest.raises(LogFormatError, match=r"spark\.shardherd\.logFormat is 'xml': use one of json, text"):
        log_format({LOG_FORMAT: "xml"})


def template() -> dict[str, Any]:
    """What Log4j fills in."""
    text = LOG4J.read_text().replace("\\\n", "")
    (found,) = (line.partition("=")[2] for line in text.splitlines() if "eventTemplate" in line)
    made: dict[str, Any] = json.loads(found)
    return made


def test_the_jvms_lines_have_the_names_of_ours_in_their_order() -> None:
    assert list(template()) == ["time", "level", "logger", "message", *WHOSE, "exception"]
