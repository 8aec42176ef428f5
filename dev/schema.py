"""Writes the copy of the resource definition's schema that the package carries: `python -m dev.schema`.

`shardherd local` judges manifests by it where there is no API server. Descriptions are left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
DEFINITION = ROOT / "crds" / "consumergroup.yaml"
COPY = ROOT / "operator" / "shardherd" / "local" / "consumergroup.json"


def rendered() -> str:
    """The copy as it should be."""
    found = yaml.safe_load(DEFINITION.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return json.dumps(_bare(found), indent=1) + "\n"


def _bare(value: Any) -> Any:
    """The schema without its descriptions; a property of that name stays."""
    if isinstance(value, list):
        return [_bare(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: _bare(item) for name, item in value.items() if name != "description" or not isinstance(item, str)}


if __name__ == "__main__":
    COPY.write_text(rendered())
