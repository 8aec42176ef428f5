"""All that is known of a group as the files of one archive, without what may be secret: the answer of `report`. Pure.

Values of environment variables, arguments, and settings that have a secret's name are left out. Secrets are never read. What an
application itself said in an error stays: look before you send it.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from collections.abc import Mapping
from typing import Any

from shardherd.core.group import ownership
from shardherd.inspect import explaining, listing, rebalancing
from shardherd.inspect.answers import Answer
from shardherd.inspect.observed import InspectError, Observed

REMOVED = "(removed)"

_SECRET = re.compile(r"(?i)secret|password|passphrase|token|credential|access.?key|private|jaas|authorization")
_LOGIN = re.compile(r"(\w+://)[^/\s@]+@")
_WHOLE = frozenset({"args", "arguments", "command"})
_DROPPED = frozenset({"managedFields", "kubectl.kubernetes.io/last-applied-configuration"})
_OURS = re.compile(r"SHARDHERD_(?!.*(TOKEN|SECRET|PASSWORD))")


def redacted(value: Any, key: str = "") -> Any:
    """The same value without what may be secret. Names of Secrets and of their keys stay."""
    if isinstance(value, Mapping):
        if "name" in value and "value" in value and not _OURS.match(str(value["name"])):
            return {**value, "value": REMOVED}
        return {name: redacted(item, name) for name, item in value.items() if name not in _DROPPED}
    if isinstance(value, list | tuple):
        return [REMOVED] * len(value) if key in _WHOLE else [redacted(item, key) for item in value]
    if isinstance(value, str):
        # `secretName` and the like name something, and are none.
        plain = not _SECRET.search(key) or key.endswith(("Name", "Key", "Policy"))
        return _LOGIN.sub(rf"\1{REMOVED}@", value) if plain else REMOVED
    return value


def files(observed: Observed, version: str, doctor: Answer | None = None) -> dict[str, str]:
    """The files of the archive, by name."""
    answers = {"status": listing.group(observed), "shards": listing.shards(observed), "lag": listing.lag(observed)}
    answers["explain"] = explaining.explain(observed)
    found: dict[str, str] = {}
    try:
        answers["rebalance"] = rebalancing.rebalance(observed)
    except InspectError as error:
        found["rebalance.txt"] = f"{error}\n"
    if doctor is not None:
        answers["doctor"] = doctor
    found |= {f"{name}.txt": _LOGIN.sub(rf"\1{REMOVED}@", answer.text(wide=True)) for name, answer in answers.items()}
    found["version.txt"] = f"shardherd {version}\n"
    found["group.json"] = _json(redacted(observed.resource))
    found["pods.json"] = _json(redacted(list(observed.pods)))
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
