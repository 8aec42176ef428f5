"""Whether a pod's spec is one, as far as this package looks into it: the part of an API server that judges StatefulSets.

A template of a ConsumerGroup may say anything, so what is here must not be trusted to be of the right shape. Used by
`LocalCluster`. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

Label = Annotated[str, Meta(pattern="^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
"""A name as it stands in a path here."""

Subdomain = Annotated[str, Meta(pattern="^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$")]
Inside = Annotated[str, Meta(pattern=r"^(?!/)(?!(.*/)?\.\.(/|$)).+$")]
"""A path that stays in its folder."""

Below = Annotated[str, Meta(pattern=r"^((?!/)(?!(.*/)?\.\.(/|$)).+)?$")]
"""The same, or the folder itself."""

Positive = Annotated[int, Meta(ge=1)]


class _KeyOf(msgspec.Struct):
    name: str
    key: str


class _Field(msgspec.Struct):
    fieldPath: str  # noqa: N815 - as Kubernetes has it


class _ValueFrom(msgspec.Struct):
    secretKeyRef: _KeyOf | None = None  # noqa: N815
    configMapKeyRef: _KeyOf | None = None  # noqa: N815
    fieldRef: _Field | None = None  # noqa: N815


class _Variable(msgspec.Struct):
    name: Annotated[str, Meta(pattern="^[ -<>-~]+$")]
    value: str | None = None
    valueFrom: _ValueFrom | None = None  # noqa: N815


class _Mount(msgspec.Struct):
    name: Label
    mountPath: str  # noqa: N815
    subPath: Below = ""  # noqa: N815


class _HttpGet(msgspec.Struct):
    path: str = "/"


class _Probe(msgspec.Struct):
    httpGet: _HttpGet | None = None  # noqa: N815
    timeoutSeconds: Positive = 1  # noqa: N815
    periodSeconds: Positive = 10  # noqa: N815
    failureThreshold: Positive = 3  # noqa: N815


class _Container(msgspec.Struct):
    name: str
    command: list[str] | None = None
    args: list[str] | None = None
    workingDir: str | None = None  # noqa: N815
    env: list[_Variable] | None = None
    volumeMounts: list[_Mount] | None = None  # noqa: N815
    readinessProbe: _Probe | None = None  # noqa: N815


class _Item(msgspec.Struct):
    key: str
    path: Inside


class _Secret(msgspec.Struct):
    secretName: str | None = None  # noqa: N815
    name: str | None = None
    items: list[_Item] | None = None


class _ConfigMap(msgspec.Struct):
    name: str | None = None
    items: list[_Item] | None = None


class _Token(msgspec.Struct):
    path: Inside


class _Source(msgspec.Struct):
    secret: _Secret | None = None
    configMap: _ConfigMap | None = None  # noqa: N815
    serviceAccountToken: _Token | None = None  # noqa: N815


class _Projected(msgspec.Struct):
    sources: list[_Source]


class _Claim(msgspec.Struct):
    claimName: Subdomain  # noqa: N815


class _HostPath(msgspec.Struct):
    path: str


class _Volume(msgspec.Struct):
    name: Label
    persistentVolumeClaim: _Claim | None = None  # noqa: N815
    hostPath: _HostPath | None = None  # noqa: N815
    secret: _Secret | None = None
    configMap: _ConfigMap | None = None  # noqa: N815
    projected: _Projected | None = None


class _Pod(msgspec.Struct):
    containers: list[_Container]
    volumes: list[_Volume] | None = None
    terminationGracePeriodSeconds: Annotated[int, Meta(ge=0)] = 30  # noqa: N815


def wrong(spec: Mapping[str, Any]) -> str:
    """The field of this pod's spec that is not as it must be, and why; empty if there is none."""
    try:
        msgspec.convert(spec, _Pod)
    except msgspec.ValidationError as error:
        why, _, path = str(error).partition(" - at `$")
        return f"spec.template.spec{path.removesuffix('`')}: Invalid value: {why[:1].lower()}{why[1:]}"
    return ""
