"""Answers as the JSON and the YAML that programs read. Needs no package that an operator has not. Decides nothing."""

from __future__ import annotations

import json

import yaml

from shardherd.core.model.positions import exact


def json_of(value: object) -> str:
    """JSON of this value, over several lines."""
    return json.dumps(exact(value), indent=2)


def yaml_of(*documents: object, encoding: str = "utf-8") -> str:
    """YAML of these documents, for an output of this encoding: what that may not have is escaped."""
    # Through JSON: enumerations and the like are plain texts there.
    plain = [json.loads(json.dumps(exact(each))) for each in documents]
    return yaml.safe_dump_all(plain, sort_keys=False, width=128, allow_unicode=encoding.lower().startswith("utf"))
