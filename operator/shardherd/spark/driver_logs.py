"""How a driver and its executors log: as text, or as one JSON object a record with the fields of the operator's logs.

`application` calls it before anything is logged. The switch is `spark.shardherd.logFormat` in the group's sparkConf, or in the
application's own. Python's side is set up here; the JVMs, of the driver and of executors, get the same by a configuration of
Log4j and what it is to say of whose they are. What an application has set up by itself stays. Sends nothing anywhere but
standard error.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from shardherd.spark.pod import Pod
from shardherd.telemetry.logs import JsonFormatter, TextFormatter

LOG_FORMAT = "spark.shardherd.logFormat"
JSON, TEXT = "json", "text"

LOG4J = Path(__file__).with_name("log4j2-json.properties")
"""The same path in a driver and its executors: both are of one image."""


class LogFormatError(ValueError):
    """The switch says neither `json` nor `text`."""


def log_format(conf: Mapping[str, str]) -> str:
    """What these settings of a session say; by default text. Raises LogFormatError."""
    said = conf.get(LOG_FORMAT, TEXT).strip().lower()
    if said not in (JSON, TEXT):
        raise LogFormatError(f"{LOG_FORMAT} is {conf[LOG_FORMAT]!r}: use one of {JSON}, {TEXT}")
    return said


def set_up(pod: Pod, form: str) -> None:
    """Log to standard error: the agent from INFO on, or from SHARDHERD_LOG_LEVEL, all else from WARNING on.

    Only what is ours where the format is text, everything of this process where it is JSON: a collector that reads JSON reads
    nothing else.
    """
    ours, root = logging.getLogger("shardherd"), logging.getLogger()
    if ours.handlers or root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(whose(pod)) if form == JSON else TextFormatter())
    (root if form == JSON else ours).addHandler(handler)
    ours.setLevel(os.environ.get("SHARDHERD_LOG_LEVEL", "INFO").upper())


def whose(pod: Pod) -> dict[str, str]:
    """What every line says: the fields of the operator's logs, and the run by which the coordinator knows this consumer."""
    incarnation = pod.session.incarnation
    return {
        "group": pod.session.group,
        "consumer": pod.session.consumer,
        "incarnation": f"{incarnation.pod_uid}.{incarnation.start}",
    }


def spark_conf(pod: Pod, form: str) -> dict[str, str]:
    """What makes the JVMs log so: nothing for text. Options of the user's own come after these, and win."""
    if form != JSON:
        return {}
    # As a URI it has no space, which would end the option.
    options = [
        f"-Dlog4j2.configurationFile={LOG4J.as_uri()}",
        *(f"-Dshardherd.{name}={value}" for name, value in whose(pod).items()),
    ]
    return dict.fromkeys(("spark.driver.defaultJavaOptions", "spark.executor.defaultJavaOptions"), " ".join(options))
