"""Which answers of the API server mean that a call may succeed later, and which that it will not. The server is played."""

from __future__ import annotations

from typing import Any, cast

import pytest

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError, KubernetesApi
from shardherd.adapters.kubernetes.cluster import KubernetesCluster
from shardherd.ports import ClusterRefusedError, ClusterUnavailableError

SERVICE = {"kind": "Service", "metadata": {"namespace": "shop", "name": "clicks"}}


class RefusingApi:
    """Answers every call with this error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def acall(self, *_: Any, **__: Any) -> Any:
        raise self._error


def refusing(error: Exception) -> KubernetesCluster:
    return KubernetesCluster(cast(KubernetesApi, RefusingApi(error)))


@pytest.mark.parametrize("status", [409, 410, 429, 500, 503])
async def test_what_may_succeed_later_is_no_refusal(status: int) -> None:
    with pytest.raises(ClusterUnavailableError, match="ask again"):
        await refusing(ApiError("ask again", status, "Whatever")).apply(SERVICE)


async def test_no_answer_is_no_refusal() -> None:
    with pytest.raises(ClusterUnavailableError, match="no answer"):
        await refusing(ApiUnavailableError("no answer")).apply(SERVICE)


@pytest.mark.parametrize("status", [400, 403, 404, 422])
async def test_what_will_not_succeed_by_waiting_is_a_refusal(status: int) -> None:
    with pytest.raises(ClusterRefusedError, match="never"):
        await refusing(ApiError("never", status, "Whatever")).apply(SERVICE)


@pytest.mark.parametrize("status", [404, 409])
async def test_a_pod_that_is_gone_or_another_one_need_not_be_deleted(status: int) -> None:
    await refusing(ApiError("not this one", status, "Whatever")).delete_pod("shop", "clicks-0", "uid-1")
