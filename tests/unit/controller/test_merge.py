"""How a user's pod template is merged into ours."""

from __future__ import annotations

from typing import Any

import pytest

from shardherd.controller.merge import merge


@pytest.mark.parametrize(
    ("base", "patch", "merged"),
    [
        pytest.param({"a": 1}, {"b": 2}, {"a": 1, "b": 2}, id="keys are added"),
        pytest.param({"a": {"x": 1, "y": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}, id="maps merge"),
        pytest.param({"a": 1, "b": 2}, {"a": None}, {"b": 2}, id="null removes"),
        pytest.param({"args": [1, 2]}, {"args": [3]}, {"args": [3]}, id="plain lists are replaced"),
        pytest.param(
            {"volumes": [{"name": "tmp", "emptyDir": {}}]},
            {"volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {"medium": "Memory"}}]},
            {"volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory"}}, {"name": "data", "emptyDir": {}}]},
            id="volumes merge by name",
        ),
        pytest.param(
            {"volumeMounts": [{"mountPath": "/tmp", "name": "tmp"}]},
            {"volumeMounts": [{"mountPath": "/data", "name": "tmp"}]},
            {"volumeMounts": [{"mountPath": "/tmp", "name": "tmp"}, {"mountPath": "/data", "name": "tmp"}]},
            id="mounts merge by path",
        ),
        pytest.param(
            {"containers": [{"name": "driver", "image": "a", "env": [{"name": "X", "value": "1"}]}]},
            {"containers": [{"name": "driver", "env": [{"name": "X", "value": "2"}]}, {"name": "side", "image": "b"}]},
            {
                "containers": [
                    {"name": "driver", "image": "a", "env": [{"name": "X", "value": "2"}]},
                    {"name": "side", "image": "b"},
                ]
            },
            id="containers merge by name, and so does what is in them",
        ),
        pytest.param(
            {"tolerations": [{"key": "a"}]},
            {"tolerations": [{"key": "b"}, {"key": "a"}]},
            {"tolerations": [{"key": "a"}, {"key": "b"}]},
            id="tolerations are added",
        ),
        pytest.param(
            {"nodeSelector": 1}, {"nodeSelector": {"disk": "ssd"}}, {"nodeSelector": {"disk": "ssd"}}, id="kinds may change"
        ),
    ],
)
def test_templates_merge(base: dict[str, Any], patch: dict[str, Any], merged: dict[str, Any]) -> None:
    before = repr(base), repr(patch)
    assert merge(base, patch) == merged
    assert (repr(base), repr(patch)) == before
