"""What a caller names gets into a path of the API server only as one part of it, and into no label."""

from __future__ import annotations

from typing import Any

import pytest

from shardherd.adapters.kubernetes.api import resource_of
from shardherd.adapters.kubernetes.tokens import KubernetesTokens
from shardherd.ports import Caller


class Api:
    """Notes which paths it is asked for, and allows everything."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def acall(self, _method: str, path: str, _body: object = None, **_options: Any) -> Any:
        self.paths.append(path)
        return {"status": {"allowed": True}}


async def test_a_namespace_is_one_part_of_the_path_in_which_rights_are_looked_up() -> None:
    api: Any = Api()
    caller = Caller("ops", "admin", "", "", "", "system:serviceaccount:ops:admin")
    assert await KubernetesTokens(api, "shardherd").may(caller, "get", "a/../../kube-system?x", "clicks")
    assert api.paths == [
        "/apis/authorization.k8s.io/v1/namespaces/a%2F..%2F..%2Fkube-system%3Fx/localsubjectaccessreviews",
    ]


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("/api/v1/namespaces/x/pods/y/log", "pods"),
        ("/api/v1/pods", "pods"),
        ("/api/v1/namespaces", "namespaces"),
        ("/api/v1/namespaces/x", "namespaces"),
        ("/apis/apps/v1/namespaces/x/statefulsets", "statefulsets"),
        ("/apis/shardherd.dev/v1alpha1/consumergroups", "consumergroups"),
        ("/version", "other"),
        ("/api/v1/namespaces/x/../../secrets", "other"),
        ("/api/v1/namespaces/x/a%2Fb", "other"),
    ],
)
def test_a_label_is_a_resource_or_other(path: str, resource: str) -> None:
    assert resource_of(path) == resource
