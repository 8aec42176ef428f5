"""Judges a ConsumerGroup as the API server does: by the structural schema of the resource definition and its rules.

Called by whoever changes a group here. What is refused on a cluster is refused in the same words, with the path of the field;
what is accepted comes back with every default. The schema is that of `crds/`; the package has a copy, which a test compares.
Pure, but for reading that file once.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from typing import Any

import re2

from shardherd.core.model.times import is_time
from shardherd.local.cel import CelError, Optional, evaluate

Json = dict[str, Any]

FILE = "consumergroup.json"
API_VERSION, KIND = "shardherd.dev/v1alpha1", "ConsumerGroup"

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


class RefusedError(Exception):
    """A resource that an API server would not take. `causes` say each what is wrong with which field."""

    def __init__(self, name: str, causes: list[str]) -> None:
        super().__init__(f'the ConsumerGroup "{name}" is invalid: ' + "; ".join(causes))


@functools.cache
def schema() -> Json:
    """The structural schema of a ConsumerGroup."""
    found: Json = json.loads(resources.files("shardherd.local").joinpath(FILE).read_text())
    return found


def admitted(resource: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> Json:
    """The resource with every default, in the place of `old`. Raises RefusedError."""
    made: Json = copy.deepcopy(dict(resource))
    name = str(made.get("metadata", {}).get("name", ""))
    if (made.get("apiVersion"), made.get("kind")) != (API_VERSION, KIND):
        raise RefusedError(name, [f"apiVersion and kind must be {API_VERSION} and {KIND}"])
    if not name:
        raise RefusedError(name, ["metadata.name: Required value"])
    # What is in the metadata is judged by other rules, and the status is nobody's to declare.
    judged = {"metadata": {"name": name}, "spec": made.get("spec")}
    before = None if old is None else {"metadata": {"name": name}, "spec": old["spec"]}
    properties = schema()["properties"]
    spec = properties["spec"]
    causes = list(_unknown(spec, judged["spec"], "spec")) if isinstance(judged["spec"], dict) else []
    judged["spec"] = _defaulted(spec, judged["spec"])
    causes = causes or list(_wrong({**schema(), "properties": {"spec": spec}, "required": ["spec"]}, judged, ""))
    causes = causes or list(_broken({**schema(), "properties": {"spec": spec}}, judged, before, ""))
    if causes:
        raise RefusedError(name, causes)
    return {**made, "spec": judged["spec"]}


def _unknown(schema: Json, value: Any, path: str) -> Iterator[str]:
    """Fields that the schema does not know."""
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, item in value.items():
            known = properties.get(name, others)
            if known is not None:
                yield from _unknown(known, item, f"{path}.{name}")
            elif not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f'unknown field "{path}.{name}"'
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _unknown(schema.get("items", {}), item, f"{path}[{number}]")


def _defaulted(schema: Json, value: Any) -> Any:
    """The value with the defaults of everything below it; null counts as not given."""
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties")
        given = {name: item for name, item in value.items() if item is not None or name not in properties}
        missing = {name: copy.deepcopy(each["default"]) for name, each in properties.items() if "default" in each}
        return {name: _defaulted(properties.get(name, others) or {}, item) for name, item in {**missing, **given}.items()}
    if isinstance(value, list):
        return [_defaulted(schema.get("items", {}), item) for item in value]
    return value


def _wrong(schema: Json, value: Any, path: str) -> Iterator[str]:
    """What the schema forbids, field by field."""
    kind = schema.get("type")
    if kind is not None and (not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        yield f"{path}: Invalid value: {json.dumps(value)}: {path} in body must be of type {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(json.dumps(each) for each in schema["enum"])
        yield f"{path}: Unsupported value: {json.dumps(value)}: supported values: {supported}"
    for name, (broken, wording) in _LIMITS.items():
        if name in schema and broken(value, schema[name]):
            yield f"{path}: Invalid value: {json.dumps(value)}: {path} in body should {wording.format(schema[name])}"
    if schema.get("format") == "date-time" and not is_time(value):
        yield f"{path}: Invalid value: {json.dumps(value)}: {path} in body must be of type date-time: {json.dumps(value)}"
    if isinstance(value, dict):
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{_below(path, name)}: Required value"
        for name, item in value.items():
            below = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if below is not None:
                yield from _wrong(below, item, _below(path, name))
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _wrong(schema.get("items", {}), item, f"{path}[{number}]")
        yield from _repeated(schema, value, path)


_LIMITS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (lambda value, limit: value < limit, "be greater than or equal to {}"),
    "maximum": (lambda value, limit: value > limit, "be less than or equal to {}"),
    "minLength": (lambda value, limit: len(value) < limit, "be at least {} chars long"),
    "maxLength": (lambda value, limit: len(value) > limit, "be at most {} chars long"),
    "minItems": (lambda value, limit: len(value) < limit, "have at least {} items"),
    "maxItems": (lambda value, limit: len(value) > limit, "have at most {} items"),
    "minProperties": (lambda value, limit: len(value) < limit, "have at least {} properties"),
    "maxProperties": (lambda value, limit: len(value) > limit, "have at most {} properties"),
    "pattern": (lambda value, pattern: re2.search(pattern, value) is None, "match '{}'"),
}


def _repeated(schema: Json, value: list[Any], path: str) -> Iterator[str]:
    """Items of a set, or keys of a map, that are there twice."""
    keys = schema.get("x-kubernetes-list-map-keys")
    if schema.get("x-kubernetes-list-type") not in ("set", "map"):
        return
    known_keys: list[Any] = []
    for number, item in enumerate(value):
        if keys is not None and not isinstance(item, dict):
            continue  # of another type than its schema has, which is said already
        key = item if keys is None else {name: item.get(name) for name in keys}
        if key in known_keys:
            yield f"{path}[{number}]: Duplicate value: {json.dumps(key)}"
        known_keys.append(key)


def _broken(schema: Json, value: Any, old: Any, path: str) -> Iterator[str]:
    """Rules of the definition that do not hold. `old` is what stood in this place, None if nothing did."""
    for rule in schema.get("x-kubernetes-validations", ()):
        optional = bool(rule.get("optionalOldSelf"))
        if "oldSelf" in rule["rule"] and old is None and not optional:
            continue
        scope = {"self": value, "oldSelf": Optional(old, old is not None) if optional else old}
        try:
            holds = bool(evaluate(rule["rule"], scope))
        except CelError as error:
            yield f"{path}: Invalid value: {rule['message']} ({error})"
            continue
        if not holds:
            where = path + rule.get("fieldPath", "")
            yield f"{where}: {_message(rule, scope)}".removeprefix(": ")
    if isinstance(value, dict):
        for name, item in value.items():
            below = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if below is not None:
                yield from _broken(below, item, old.get(name) if isinstance(old, dict) else None, _below(path, name))
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _broken(schema.get("items", {}), item, None, f"{path}[{number}]")


def _message(rule: Json, scope: Mapping[str, Any]) -> str:
    if "messageExpression" not in rule:
        return str(rule["message"])
    return str(evaluate(rule["messageExpression"], scope))


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
