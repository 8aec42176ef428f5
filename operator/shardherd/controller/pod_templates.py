"""Whether the templates of a group are those of pods, as far as the controller looks into them. Called by `manifests`.

The schema of a ConsumerGroup lets anything in as a template; the rest of it the API server judges, with each pod. What is null
removes something of ours. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shardherd.controller.declared import InvalidGroupError


class _Named(msgspec.Struct):
    name: str


class _Mount(msgspec.Struct):
    mountPath: str  # noqa: N815 - as Kubernetes has it


class _Resources(msgspec.Struct):
    requests: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None


class _Container(_Named):
    env: list[_Named] | None = None
    volumeMounts: list[_Mount] | None = None  # noqa: N815
    resources: _Resources | None = None


class _Metadata(msgspec.Struct):
    labels: dict[str, str | None] | None = None
    annotations: dict[str, str | None] | None = None


class _Pod(msgspec.Struct):
    containers: list[_Container] = []
    initContainers: list[_Container] | None = None  # noqa: N815
    volumes: list[_Named] | None = None


class _Template(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Pod = msgspec.field(default_factory=_Pod)


def check(application: Mapping[str, Any]) -> None:
    """Raises InvalidGroupError for a template of this application that is none of a pod: with the field and what it must be."""
    for role in ("driver", "executor", "worker"):
        template = application.get(role, {}).get("template", {})
        try:
            msgspec.convert(template, _Template)
        except msgspec.ValidationError as error:
            wrong, _, path = str(error).partition(" - at `$")
            field = f"spec.application.{role}.template{path.removesuffix('`')}"
            raise InvalidGroupError(f"{field} is not as in a PodTemplateSpec: {wrong[:1].lower()}{wrong[1:]}") from error
