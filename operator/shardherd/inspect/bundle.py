"""All that is known of a group as the files of one archive, without what may be secret: the answer of `report`. Pure.

The archive goes to strangers. Wherever users configure freely (environment, Spark's configuration, arguments, annotations) only
values that are known to be harmless are kept; names stay, so that a reader sees what is configured. Secrets are never read.
What looks like a secret in a text, which anybody may have written, is removed: look before you send it.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardherd.controller import names
from shardherd.core.group import ownership
from shardherd.inspect import explaining, listing, rebalancing
from shardherd.inspect.answers import Answer
from shardherd.inspect.observed import InspectError, Observed

REMOVED = "(removed)"

_OURS = frozenset(
    f"SHARDHERD_{name}"
    for name in (
        "CAPACITY", "CONSUMER", "COORDINATOR_CA_FILE", "COORDINATOR_LOSS_LIMIT_MS", "COORDINATOR_URL", "DRAIN_TIMEOUT_MS",
        "DRIVER_CORES", "DRIVER_HOST", "DRIVER_MEMORY", "EXECUTOR_CORES", "EXECUTOR_CPU_LIMIT", "EXECUTOR_INSTANCES",
        "EXECUTOR_LEAST", "EXECUTOR_MEMORY", "EXECUTOR_SERVICE_ACCOUNT", "GRACE_PERIOD_MS", "GROUP", "GROUP_UID",
        "HEARTBEAT_INTERVAL_MS", "IMAGE", "IMAGE_PULL_POLICY", "KAFKA_ISOLATION_LEVEL", "METRICS_DIGEST_FILE", "METRICS_PORT",
        "NAMESPACE", "ORDERED", "POD_IP", "POD_UID", "RUN_DIR", "SESSION_TIMEOUT_MS", "TOKEN_FILE", "ZONE",
    )
)  # fmt: skip
"""Variables whose values are kept: none holds what a user configures freely."""

_SPARK_CONF, _TEMPLATE = "SHARDHERD_SPARK_CONF", "SHARDHERD_EXECUTOR_TEMPLATE"
"""Variables that are JSON, of which is kept what is kept where the group declares it."""

_HARMLESS = re.compile(
    r"spark\.((driver|executor)\.(cores|memory|memoryOverhead|memoryOverheadFactor|maxResultSize|instances|heartbeatInterval)"
    r"|cores\.max|default\.parallelism|dynamicAllocation\.[\w.]+|kubernetes\.(driver|executor)\.(request|limit)\.cores"
    r"|kubernetes\.allocation\.[\w.]+|locality\.wait|memory\.(fraction|storageFraction|offHeap\.(enabled|size))"
    r"|network\.timeout|rpc\.[\w.]+|scheduler\.[\w.]+|shuffle\.[\w.]+|speculation[\w.]*|sql\.adaptive\.[\w.]+"
    r"|sql\.files\.[\w.]+|sql\.shuffle\.partitions|sql\.streaming\.[\w.]+|task\.(cpus|maxFailures)|ui\.enabled)"
)
"""Keys of Spark's configuration whose values are kept, if they are numbers, sizes, durations or booleans."""
_MEASURE = re.compile(r"(?i)true|false|-?\d+(\.\d+)?[a-z]{0,3}")

_ENDED_MEASURE = re.compile(rf"""["']?({_MEASURE.pattern.removeprefix("(?i)")})(?=[\s"',;)]|$)""", re.IGNORECASE)

_DROPPED = frozenset({"managedFields"})
_WHOLE = frozenset({"args", "arguments", "command"})
_CONFIGURATION = frozenset({"sparkconf", "hadoopconf"})
_ENVIRONMENT = frozenset({"env", "environment", "executorenv", "driverenv"})
_PARAMETERS = frozenset({"annotations", "volumeattributes", "options"})
"""Mappings from names to whatever somebody chose."""
_DECLARATIONS = frozenset({names.DECLARATION, names.FALLBACK})
"""Annotations of ours that are the whole of what a user declared."""

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_WORDS = frozenset(
    {"auth", "cookie", "cookies", "cred", "creds", "key", "keys", "pass", "psk", "pw", "pwd", "sas", "sig", "signature"}
)
_SECRET = re.compile(
    r"(?i)secret|passw|passphrase|token|credential|signature|jaas|authorization|userinfo|private.?key|access.?key|account.?key"
    r"|api.?key"
)
_REFERENCES = frozenset({"secret", "imagePullSecrets", "serviceAccountToken"})
"""Fields of pods and volumes that name Secrets and tokens, as do those that end with SecretRef and KeyRef."""
_REFERRING = frozenset(
    {
        "apiVersion", "audience", "certificateKey", "defaultMode", "expirationSeconds", "items", "key", "kind", "mode", "name",
        "namespace", "optional", "passwordKey", "path", "privateKeyKey", "secretName", "usernameKey",
    }
)  # fmt: skip
"""What a reference consists of."""
_NAMING = frozenset({"matchLabelKeys", "mismatchLabelKeys", "secretName", "tokenEndpoint", "topologyKey"})
"""Fields with a secret's name that hold none."""
_BESIDE_KEY = frozenset({"effect", "mode", "name", "operator", "optional", "path", "values"})
"""Where one of these stands too, `key` is the name of something."""

_HEAD = re.compile(
    r"(?<![\w.\-])(?P<name>[\w.\-]+)(?:(?P<quote>\\*[\"']?)(?P<space>[ \t]*)(?P<sign>=>|:=|=|:|>|%3[dD])[ \t]*"
    r"|(?P<flag>\\*[\"']?(?:[ \t]*,[ \t]*|[ \t]+)))"
)
_VALUE = re.compile(r"""[{\[].*|\\*"(?:\\.|[^"\\])*"?\S*|\\*'(?:\\.|[^'\\])*'?\S*|\S*""", re.DOTALL)
_LINE = re.compile(r"[^\r\n]*")
_HEADER = re.compile(r"(?i)(?:authorization|cookie)$")
_NAMED_SECRET = re.compile(
    r"(?i)(secret|password|passwd|passphrase|pwd|token|credential|signature|authorization|cookie|.key)s?$"
)
"""Names whose value may follow a colon, which also ends what is no name at all."""
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=\-]{8,}")
_KNOWN = re.compile(
    r"-----BEGIN [^-]*PRIVATE KEY-----.*?(?:-----END[^-]*-----|\Z)|\beyJ[\w\-]{8,}\.[\w\-.]+|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    re.DOTALL,
)
"""Private keys, tokens and keys of AWS, which can be told by themselves."""
_RUN = re.compile(r"\S+")
_AT = re.compile(r"@(?!sha\d+:)")
"""What ends a user in an address; an image's digest is none."""


def redacted(value: Any, key: str = "") -> Any:
    """The same value without what may be secret, as it stands under this key. Names of Secrets and of their keys stay."""
    if (plain := key.replace("_", "").replace("-", "").lower()) in _WHOLE:
        return [REMOVED] * len(value) if isinstance(value, list | tuple) else REMOVED
    if plain in _CONFIGURATION:
        return _configuration(value)
    if plain in _ENVIRONMENT:
        return _environment(value)
    if plain in _PARAMETERS and (plain == "annotations" or isinstance(value, Mapping)):
        return _parameters(value)
    if key in _REFERENCES or key.endswith(("SecretRef", "secretRef", "KeyRef")):
        return _reference(value)
    if isinstance(value, bool) or value is None:
        return value
    if key == "offsets" and isinstance(value, Mapping) and all(isinstance(item, int) for item in value.values()):
        return dict(value)  # By names of shards, and topics have any name.
    if key not in _NAMING and _is_secret(key):
        return REMOVED
    if isinstance(value, Mapping):
        return {text(name): _field(value, name, item) for name, item in value.items() if name not in _DROPPED}
    if isinstance(value, list | tuple):
        # What follows `--password` is one.
        given = [
            False,
            *(isinstance(item, str) and item.startswith("-") and "=" not in item and _is_secret(item) for item in value),
        ]
        return [REMOVED if secret else redacted(item, key) for item, secret in zip(value, given, strict=False)]
    if isinstance(value, str):
        # Of images, `key:1` is a name and its tag.
        return _RUN.sub(_address, value) if key in ("image", "imageID") else text(value)
    return value


def text(value: str) -> str:
    """The same text without what looks like a secret: users in addresses, and what is given to a name such as `password`."""
    if value.lstrip()[:1] in ("{", "["):
        try:
            return json.dumps(redacted(json.loads(value)))
        except RecursionError:
            return REMOVED
        except ValueError:
            pass  # It only looks like JSON.
    return _assigned(_RUN.sub(_address, _KNOWN.sub(REMOVED, _BEARER.sub(rf"\1 {REMOVED}", value))))


def _without_secrets(observed: Observed) -> Observed:
    return replace(
        observed,
        resource=redacted(observed.resource),
        pods=tuple(redacted(pod) for pod in observed.pods),
        events=tuple(replace(event, message=text(event.message)) for event in observed.events),
        unseen=tuple(map(text, observed.unseen)),
    )


def _lines(value: str) -> str:
    return "\n".join(map(text, value.split("\n")))


def _field(of: Mapping[str, Any], name: str, value: Any) -> Any:
    if name == "key" and isinstance(value, str) and of.keys() & _BESIDE_KEY:
        return text(value)
    # A toleration names what it tolerates; every other pair is somebody's configuration.
    if name == "value" and ("name" in of or ("key" in of and not of.keys() & {"effect", "operator"})):
        return REMOVED
    return _configured(name, value) if name.startswith("spark.") else redacted(value, name)


def _is_secret(name: str) -> bool:
    return bool(_SECRET.search(name)) or any(word.lower() in _SECRET_WORDS for word in _WORDS.findall(name))


def _configuration(value: Any) -> Any:
    return {text(name): _configured(name, item) for name, item in value.items()} if isinstance(value, Mapping) else REMOVED


def _configured(name: str, value: Any) -> Any:
    return value if _HARMLESS.fullmatch(name) and not _is_secret(name) and _MEASURE.fullmatch(str(value)) else REMOVED


def _environment(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {text(name): _variable(name, item) for name, item in value.items()}
    if not isinstance(value, list | tuple):
        return REMOVED
    return [_declared_variable(each) if isinstance(each, Mapping) else REMOVED for each in value]


def _declared_variable(given: Mapping[str, Any]) -> dict[str, Any]:
    name = str(given.get("name", ""))
    kept = dict.fromkeys(map(text, given), REMOVED)
    if "name" in given:
        kept["name"] = text(name)
    if "value" in given:
        kept["value"] = _variable(name, given["value"])
    return kept | ({"valueFrom": redacted(given["valueFrom"])} if "valueFrom" in given else {})


def _variable(name: str, value: Any) -> str:
    if name in (_SPARK_CONF, _TEMPLATE):
        try:
            given = json.loads(value)
        except (TypeError, ValueError):
            return REMOVED
        return json.dumps(_configuration(given) if name == _SPARK_CONF else redacted(given))
    return text(str(value)) if name in _OURS else REMOVED


def _parameters(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return REMOVED
    return {
        text(name): text(str(item)) if name.startswith(f"{names.API_GROUP}/") and name not in _DECLARATIONS else REMOVED
        for name, item in value.items()
    }


def _reference(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_reference(each) for each in value]
    if not isinstance(value, Mapping):
        return REMOVED
    return {text(name): _referring(name, item) if name in _REFERRING else REMOVED for name, item in value.items()}


def _referring(name: str, value: Any) -> Any:
    if name == "items":
        return _reference(value)
    if isinstance(value, Mapping | list | tuple):
        return REMOVED
    return text(value) if isinstance(value, str) else value


def _address(found: re.Match[str]) -> str:
    """A run without spaces, without what stands between its first scheme and the host: users may have any character."""
    run = found[0]
    if "@" not in run or not (ends := [at.start() for at in _AT.finditer(run)]):
        return run
    last = ends[-1]
    mark = next((mark for mark in ("://", "//", ":", "/") if mark in run[:last]), None)
    if mark is None:
        return run
    kept, user = run.index(mark) + len(mark), run[:last]
    # An `@` behind a `?` may be a part of what is given there, and then what follows is the rest of it.
    return run[:kept] + REMOVED + ("" if "?" in user[kept:] else run[last:])


def _assigned(value: str) -> str:
    parts, done, at = [], 0, 0
    while (head := _HEAD.search(value, at)) is not None:
        at = head.end()
        if not _gives_secret(head, value):
            continue
        parts += [value[done:at], REMOVED]
        given = (_LINE if _HEADER.search(head["name"]) else _VALUE).match(value, at)
        done = at = given.end() if given is not None else at
    return "".join([*parts, value[done:]])


def _gives_secret(head: re.Match[str], value: str) -> bool:
    """Whether what follows such a head in this text is to be removed."""
    name, sign, at = head["name"], head["sign"], head.end()
    first = value[at : at + 2].lstrip("\\")[:1]
    if head["flag"] is not None:
        return name.startswith("-") and _is_secret(name) and first != ""
    # Of Spark's settings only those known to be harmless stay, in texts too.
    if not _is_secret(name) and (
        not name.startswith("spark.") or (_HARMLESS.fullmatch(name) and _ENDED_MEASURE.match(value, at))
    ):
        return False
    if sign == ">":
        return not head["space"]  # An element of XML.
    if sign != ":" or first in ('"', "'"):
        return True
    if head["quote"]:
        # Of `volume "token" : ...` the name is the volume's.
        return not head["space"]
    return bool(_NAMED_SECRET.search(name))


def files(observed: Observed, version: str, doctor: Answer | None = None) -> dict[str, str]:
    """The files of the archive, by name."""
    # First what was read, since a text's end is no longer known in a table; then each line, for what else is said in it.
    observed = _without_secrets(observed)
    answers = {"status": listing.group(observed), "shards": listing.shards(observed), "lag": listing.lag(observed)}
    answers["explain"] = explaining.explain(observed)
    found: dict[str, str] = {}
    try:
        answers["rebalance"] = rebalancing.rebalance(observed)
    except InspectError as error:
        found["rebalance.txt"] = _lines(f"{error}\n")
    if doctor is not None:
        answers["doctor"] = doctor
    found |= {f"{name}.txt": _lines(answer.text(wide=True)) for name, answer in answers.items()}
    found["version.txt"] = f"shardherd {version}\n"
    found["group.json"] = _json(observed.resource)
    found["pods.json"] = _json(list(observed.pods))
    if observed.stored is not None:
        found["ownership.json"] = _json(ownership.encode(observed.stored))
        found["positions.json"] = _json(dict(observed.copies.offsets))
    return found


def archive(folder: str, contents: Mapping[str, str], wall: float) -> bytes:
    """These files in a folder, as a gzipped tar."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=int(wall)) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for name in sorted(contents):
            data = contents[name].encode()
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime = len(data), int(wall)
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def _json(value: object) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"
