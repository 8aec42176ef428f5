"""What a pod's template says, on a machine without containers: folders for volumes, and paths that lead there. Used by `node`.

A process sees the machine's own files, so a path below a mount becomes one below the volume's folder, wherever the template
hands the application a path: in its arguments and its environment. Decides what stands for which kind of volume.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardherd.adapters.local.objects import CONFIG_MAP, SECRET, Json
from shardherd.adapters.local.statuses import driver

Find = Callable[[str, str], Json | None]
"""Gives an object of the pod's namespace by its kind and name."""

_REFERENCE = re.compile(r"\$\$|\$\(([^()]*)\)")


class VolumeError(Exception):
    """A volume cannot be provided. The message names it and the remedy."""


@dataclass(frozen=True, slots=True)
class Volumes:
    """Makes the folders of one pod's volumes. `pod` is the pod's own folder, `claims` that of its namespace's claims."""

    pod: Path
    claims: Path
    find: Find
    token: Callable[[], str]

    def provide(self, spec: Mapping[str, Any], name: str) -> dict[str, Path]:
        """The folder of every volume of this pod, by the volume's name; `name` is the pod's. Raises VolumeError."""
        folders = {volume["name"]: self._folder(volume) for volume in spec.get("volumes", ())}
        mounted = {mount["name"] for mount in driver(spec).get("volumeMounts", ())}
        # What a claim template gives is not among the pod's volumes in a StatefulSet's template.
        return folders | {each: _made(self.claims / f"{each}-{name}") for each in mounted - folders.keys()}

    def _folder(self, volume: Mapping[str, Any]) -> Path:
        name = volume["name"]
        match next((key for key in volume if key != "name"), "emptyDir"):
            case "emptyDir":
                # The run folder is found by its name, as the shim keeps the count of starts in it.
                return _made(self.pod / "run" if name == "run" else self.pod / "volumes" / name)
            case "persistentVolumeClaim":
                return _made(self.claims / volume["persistentVolumeClaim"]["claimName"])
            case "hostPath":
                return Path(volume["hostPath"]["path"])
            case "secret" | "configMap" | "projected" as kind:
                return self._files(name, kind, volume[kind])
            case other:
                raise VolumeError(
                    f"volume {name!r} is of the kind {other}, which there is not on one machine: use another kind"
                )

    def _files(self, volume: str, kind: str, source: Mapping[str, Any]) -> Path:
        folder = self.pod / "volumes" / volume
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        sources = source["sources"] if kind == "projected" else [{kind: source}]
        for each in sources:
            for name, data in self._content(volume, each).items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(mode=0o600)
                path.write_bytes(data)
        return folder

    def _content(self, volume: str, source: Mapping[str, Any]) -> dict[str, bytes]:
        if "serviceAccountToken" in source:
            return {source["serviceAccountToken"]["path"]: self.token().encode()}
        kind, wanted = next(iter(source.items()))
        name = wanted.get("name") or wanted.get("secretName")
        found = self.find(SECRET if kind == "secret" else CONFIG_MAP, name)
        if found is None:
            if wanted.get("optional"):
                return {}
            raise VolumeError(f"volume {volume!r} needs the {kind} {name!r}: put it into the manifest file beside the group")
        plain = {key: text.encode() for key, text in (found.get("data") or {}).items()} if kind == "configMap" else {}
        binary = {} if kind == "configMap" else found.get("data") or {}
        data = plain | {key: base64.b64decode(text) for key, text in {**binary, **(found.get("binaryData") or {})}.items()}
        if "items" not in wanted:
            return data
        missing = [item["key"] for item in wanted["items"] if item["key"] not in data]
        if missing and not wanted.get("optional"):
            raise VolumeError(f"volume {volume!r} needs the key {missing[0]!r} of the {kind} {name!r}: add it there")
        return {item["path"]: data[item["key"]] for item in wanted["items"] if item["key"] in data}


@dataclass(frozen=True, slots=True)
class Paths:
    """Where paths in the container lead on this machine: (path of a mount, folder), the longest path first."""

    mounts: tuple[tuple[str, str], ...]

    def of(self, text: str) -> str:
        """A text that is a path below a mount, as a path of this machine; any other as it is. JSON is looked through."""
        if text.startswith("{"):
            try:
                found = json.loads(text)
            except ValueError:
                return text
            return json.dumps(self._within(found), sort_keys=True, separators=(",", ":"))
        for path, folder in self.mounts:
            if text == path or text.startswith(f"{path}/"):
                return folder + text[len(path) :]
        return text

    def _within(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._within(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._within(item) for item in value]
        return self.of(value) if isinstance(value, str) and value.startswith("/") else value


def paths(spec: Mapping[str, Any], folders: Mapping[str, Path]) -> Paths:
    """Where this pod's mounts lead, its volumes being in these folders."""
    mounts = [
        (mount["mountPath"].rstrip("/"), str(folders[mount["name"]] / mount.get("subPath", "")))
        for mount in driver(spec).get("volumeMounts", ())
    ]
    return Paths(tuple(sorted(mounts, key=lambda mount: len(mount[0]), reverse=True)))


def environment(pod: Json, find: Find, own: Mapping[str, str]) -> dict[str, str]:
    """The driver's variables as the kubelet would work them out. `own` are those that only this machine can know."""
    found: dict[str, str] = {}
    for item in driver(pod["spec"]).get("env", ()):
        name = item["name"]
        if name in own:
            found[name] = own[name]
        elif "valueFrom" not in item:
            found[name] = _expanded(str(item.get("value", "")), found)
        else:
            value = _from(pod, item["valueFrom"], find, name)
            if value is not None:
                found[name] = value
    return found


def with_temporary(variables: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The variables of a process that keeps what is temporary in this folder, unless they name another one; its JVM, too."""
    found = {"TMPDIR": str(folder), **variables}
    option = f"-Djava.io.tmpdir={found['TMPDIR']}"
    if " " in option:
        option = f'"{option}"'
    # Before what is there: of options that are given twice Java takes the last.
    found["JAVA_TOOL_OPTIONS"] = f"{option} {found.get('JAVA_TOOL_OPTIONS', '')}".strip()
    return found


def _from(pod: Json, source: Mapping[str, Any], find: Find, variable: str) -> str | None:
    if "fieldRef" in source:
        return _field(pod, source["fieldRef"]["fieldPath"])
    for kind, reference in (("secret", "secretKeyRef"), ("configMap", "configMapKeyRef")):
        if reference in source:
            wanted = source[reference]
            known = find(SECRET if kind == "secret" else CONFIG_MAP, wanted["name"]) or {}
            value = (known.get("data") or {}).get(wanted["key"])
            if value is None and not wanted.get("optional"):
                raise VolumeError(
                    f"the variable {variable} needs the key {wanted['key']!r} of the {kind} {wanted['name']!r}: put it into the"
                    " manifest file beside the group"
                )
            return _text(value, variable, wanted) if value is not None and kind == "secret" else value
    raise VolumeError(
        f"the variable {variable} comes from {next(iter(source), 'nowhere')}, which there is not on one machine: give a value"
    )


def _text(value: str, variable: str, wanted: Mapping[str, Any]) -> str:
    """What a key of a Secret has, as a variable can."""
    try:
        return base64.b64decode(value).decode()
    except UnicodeDecodeError as error:
        raise VolumeError(
            f"the variable {variable} needs the key {wanted['key']!r} of the secret {wanted['name']!r}, which is no text:"
            " mount the Secret as a volume"
        ) from error


def _field(pod: Json, path: str) -> str:
    """A field of the pod, as the downward API names it; empty if it has none."""
    if path == "status.podIP" or path == "status.hostIP":
        return "127.0.0.1"
    keyed = re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path)
    if keyed:
        return str((pod["metadata"].get(keyed[1]) or {}).get(keyed[2], ""))
    value: Any = pod
    for part in path.split("."):
        value = value.get(part, "") if isinstance(value, Mapping) else ""
    return str(value)


def _expanded(text: str, known: Mapping[str, str]) -> str:
    """`$(NAME)` of a variable that came before is its value; `$$` is a dollar."""

    def one(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else known.get(match[1], match[0])

    return _REFERENCE.sub(one, text)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
