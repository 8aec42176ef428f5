"""Asks a schema registry that speaks Confluent's REST for the schema of an id.

`avro_column` calls it in Spark's Python workers; a schema is asked for once a process. It tries again while the registry does
not answer, for a few seconds: Spark tries the task again after that.
"""

from __future__ import annotations

import base64
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request

from shardherd.source.values import avro_schema
from shardherd.source.values.avro_types import Avro
from shardherd.source.values.value_schema import SchemaError

TIMEOUT = 10.0
"""Seconds for one answer."""

TRIES = 4
RETRY_DELAY = 0.5
"""Seconds before the second try; each later one waits twice as long."""

LATER = (408, 429)
"""Statuses below 500 of a registry that is asked too much at once, as by all tasks of a query that begins."""

_known: dict[tuple[str, int], Avro] = {}


class RegistryError(RuntimeError):
    """The registry cannot be asked. Names its address, the id and what came back."""


class UnknownSchemaError(ValueError):
    """The registry has no Avro schema of that id: the value is malformed."""


class Registry:
    """A registry at a URL, which may hold a user and a password."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        self.address = urllib.parse.urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if parts.username is not None:
            secret = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._headers["Authorization"] = "Basic " + base64.b64encode(secret.encode()).decode()

    def schema(self, schema_id: int) -> Avro:
        """The schema of this id. Raises RegistryError, or UnknownSchemaError if the registry does not have it."""
        key = (self.address, schema_id)
        if key not in _known:
            _known[key] = self._fetch(schema_id)
        return _known[key]

    def _fetch(self, schema_id: int) -> Avro:
        url = f"{self.address}/schemas/ids/{schema_id}"
        delay = RETRY_DELAY
        for attempt in range(1, TRIES + 1):
            try:
                with urllib.request.urlopen(urllib.request.Request(url, headers=self._headers), timeout=TIMEOUT) as answer:
                    return self._parse(schema_id, answer.read())
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    raise UnknownSchemaError(f"the schema registry at {self.address} has no schema {schema_id}") from error
                if (error.code < 500 and error.code not in LATER) or attempt == TRIES:
                    remedy = "; check the user and password in option schemaRegistryUrl" if error.code in (401, 403) else ""
                    raise RegistryError(f"schema registry {url} answered {error.code} {error.reason}{remedy}") from error
            except (OSError, ValueError, http.client.HTTPException) as error:
                if isinstance(error, UnknownSchemaError):
                    raise
                if attempt == TRIES:
                    raise RegistryError(
                        f"schema registry {url} does not answer: {error}; check option schemaRegistryUrl"
                    ) from error
            time.sleep(delay)
            delay *= 2
        raise AssertionError("unreachable")

    def _parse(self, schema_id: int, body: bytes) -> Avro:
        try:
            answer = json.loads(body)
            text = answer["schema"]
        except (ValueError, KeyError, TypeError) as error:
            raise RegistryError(
                f"schema registry {self.address} gave no schema for id {schema_id} but {body[:200]!r}"
            ) from error
        kind = answer.get("schemaType", "AVRO")
        if kind != "AVRO":
            raise UnknownSchemaError(f"schema {schema_id} of the schema registry at {self.address} is {kind}, not AVRO")
        if answer.get("references"):
            raise RegistryError(
                f"schema {schema_id} of the schema registry at {self.address} refers to other schemas, which is not supported; "
                "register it in one piece"
            )
        try:
            return avro_schema.parse(text, f"schema {schema_id} of the schema registry at {self.address}", recursive=True)
        except SchemaError as error:
            raise RegistryError(str(error)) from error
