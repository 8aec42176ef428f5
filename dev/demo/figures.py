"""Reads figures: from a /metrics page, and from Prometheus by a query. Called by the steps; decides nothing."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from dev.demo.report import DemoError


@dataclass(frozen=True)
class Sample:
    """One value of one series."""

    name: str
    labels: dict[str, str]
    value: float


def fetch(url: str, timeout: float = 5) -> str:
    """Body of a GET. Raises DemoError with the address and the reason."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            body: bytes = answer.read()
            return body.decode()
    except (urllib.error.URLError, OSError) as error:
        raise DemoError(f"GET {url} failed: {error}") from error


def page(url: str) -> list[Sample]:
    """All samples of a /metrics page."""
    return list(_samples(fetch(url)))


def _samples(text: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield Sample(sample.name, dict(sample.labels), float(sample.value))


def query(prometheus: str, expression: str) -> list[Sample]:
    """The instant result of a PromQL expression, empty if no series matches. Raises DemoError."""
    answer = json.loads(fetch(f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"))
    if answer.get("status") != "success":
        raise DemoError(f"Prometheus refused {expression!r}: {answer}")
    return [
        Sample(series["metric"].pop("__name__", ""), series["metric"], float(series["value"][1]))
        for series in answer["data"]["result"]
    ]
