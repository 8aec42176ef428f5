"""What is known of a group's objects without asking the API server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardherd.adapters.kubernetes.seen import BUDGET, GROUP, POD, SERVICE, STATEFUL_SET, Seen, slim
from shardherd.ports import GroupObjects

KEY = ("shop", "clicks")
LABELS = {"shardherd.dev/consumergroup": "clicks"}

Json = dict[str, Any]


def body(name: str = "clicks", version: int = 1, uid: str = "", **fields: Any) -> Json:
    metadata = {
        "name": name,
        "namespace": "shop",
        "uid": uid or f"uid-of-{name}",
        "resourceVersion": str(version),
        "labels": LABELS,
        "managedFields": [{"manager": "somebody"}],
    }
    return {"metadata": metadata, **fields}


def stateful_set(replicas: int, version: int) -> Json:
    return body(version=version, spec={"replicas": replicas, "template": {"spec": {}}}, status={"readyReplicas": version})


def pod(name: str, version: int = 1, phase: str = "Running", **fields: Any) -> Json:
    spec = {"nodeName": "node", "containers": [{"name": "driver", "image": "i", "env": []}], "volumes": []}
    return body(name, version, spec=spec, status={"phase": phase, "podIP": f"10.0.0.{version}"}, **fields)


def names(found: GroupObjects | None) -> list[str] | None:
    """The pods that are known; None if the group is not."""
    return None if found is None else [item["metadata"]["name"] for item in found.pods]


def read(seen: Seen, *pods: Json, version: int = 1) -> None:
    """The group was read from the API server, with these pods."""
    kept = tuple(slim(POD, item) for item in pods)
    seen.learn(
        KEY,
        GroupObjects(body(spec={}, version=version), slim(STATEFUL_SET, stateful_set(2, version)), pods=kept),
        seen.touched(KEY),
    )


def test_a_group_is_known_once_it_was_read() -> None:
    seen = Seen()
    seen.see(POD, pod("clicks-0"))
    assert seen.whole(KEY) is None

    read(seen, pod("clicks-0"))

    found = seen.whole(KEY)
    assert found is not None
    assert (found.stateful_set or {})["spec"] == {"replicas": 2}
    assert (names(found), found.service, found.budget) == (["clicks-0"], None, None)


def test_nobody_need_read_a_group_that_is_made_after_everything_was_listed() -> None:
    seen = Seen()
    seen.listing()([])

    seen.see(GROUP, body(spec={}))

    assert seen.whole(KEY) == GroupObjects(slim(GROUP, body(spec={})))


def test_a_new_group_is_read_if_there_may_be_more_of_it_than_the_watches_have_told() -> None:
    unlisted, begun_anew, listed, known, left = Seen(), Seen(), Seen(), Seen(), Seen()
    for seen in (begun_anew, listed, known, left):
        seen.listing()([])
    begun_anew.see(POD, pod("others-0", metadata={**body("others-0")["metadata"], "labels": {}}), listed=True)
    known.see(POD, pod("clicks-0"))
    left.learn(KEY, None, left.touched(KEY))

    for seen in (unlisted, begun_anew, known, left):
        seen.see(GROUP, body(spec={}))
    listed.see(GROUP, body(spec={}), listed=True)

    assert [seen.whole(KEY) for seen in (unlisted, begun_anew, listed, known, left)] == [None] * 5


def test_somebody_elses_object_under_the_groups_name_is_not_remembered_as_no_watch_tells_when_it_goes() -> None:
    seen = Seen()
    theirs = body()
    del theirs["metadata"]["labels"]

    seen.learn(KEY, GroupObjects(body(spec={}), stateful_set(2, 1), service=theirs), seen.touched(KEY))

    found = seen.whole(KEY)
    assert found is not None
    assert found.service is None


def test_what_changed_while_it_was_read_makes_it_be_read_once_more() -> None:
    seen = Seen()
    touched = seen.touched(KEY)
    seen.see(POD, pod("clicks-0"), gone=True)

    seen.learn(KEY, GroupObjects(body(spec={}), pods=(pod("clicks-0"),)), touched)

    assert seen.whole(KEY) is None


def test_watches_keep_what_is_known_up_to_date() -> None:
    seen = Seen()
    read(seen, pod("clicks-0"))

    assert seen.see(POD, pod("clicks-1", 5))
    assert seen.see(POD, pod("clicks-0", 6), gone=True)
    assert seen.see(STATEFUL_SET, stateful_set(3, 7))

    found = seen.whole(KEY)
    assert names(found) == ["clicks-1"]
    assert found is not None
    assert (found.stateful_set or {})["spec"] == {"replicas": 3}


@pytest.mark.parametrize("kind", [STATEFUL_SET, SERVICE, BUDGET])
def test_what_lost_its_label_is_told_as_gone_and_may_be_there_still(kind: str) -> None:
    seen = Seen()
    read(seen, pod("clicks-0"))
    seen.see(kind, stateful_set(2, 5))
    assert seen.has(KEY, kind)

    assert seen.see(kind, stateful_set(2, 6), gone=True)

    assert (seen.has(KEY, kind), seen.whole(KEY)) == (False, None)


def test_an_older_version_changes_nothing() -> None:
    seen = Seen()
    read(seen)
    seen.see(STATEFUL_SET, stateful_set(4, 10))

    assert not seen.see(STATEFUL_SET, stateful_set(3, 9))

    found = seen.whole(KEY)
    assert found is not None
    assert (found.stateful_set or {})["spec"] == {"replicas": 4}


def test_of_two_objects_under_one_name_the_end_of_the_former_is_no_end_of_the_latter() -> None:
    seen = Seen()
    read(seen, pod("clicks-0"))
    seen.see(POD, pod("clicks-0", 20) | {"metadata": body("clicks-0", 20, uid="another")["metadata"]})

    seen.see(POD, pod("clicks-0", 18))
    seen.see(POD, pod("clicks-0", 19), gone=True)

    found = seen.whole(KEY)
    assert found is not None
    assert [item["metadata"]["uid"] for item in found.pods] == ["another"]


def test_what_the_controller_does_not_look_at_is_no_news() -> None:
    seen = Seen()
    read(seen, pod("clicks-0"))

    assert not seen.see(STATEFUL_SET, stateful_set(2, 30))
    assert not seen.see(POD, pod("clicks-0", 31))
    assert seen.see(POD, pod("clicks-0", 32, phase="Failed"))
    assert seen.see(BUDGET, body(version=33))
    assert not seen.see(BUDGET, body(version=34, status={"disruptionsAllowed": 1}))


def test_a_write_of_unknown_outcome_makes_the_group_be_read_again() -> None:
    seen = Seen()
    read(seen, pod("clicks-0"))
    seen.distrust_pod("shop", "clicks-0")
    assert seen.whole(KEY) is None

    read(seen, pod("clicks-0"))
    seen.distrust(KEY)
    assert seen.whole(KEY) is None


def test_a_group_that_is_gone_is_not_known() -> None:
    seen = Seen()
    read(seen)
    seen.see(GROUP, body(spec={}, version=40), gone=True)
    assert seen.whole(KEY) is None

    seen.learn(KEY, None, seen.touched(KEY))
    assert seen.whole(KEY) is None


def test_a_listing_makes_every_group_known_but_those_that_change_meanwhile() -> None:
    seen = Seen()
    seen.see(POD, pod("clicks-0"))
    listed = seen.listing()
    other = body("other", spec={}) | {"metadata": {**body("other")["metadata"], "labels": {}}}
    seen.see(POD, pod("clicks-1"))

    listed([(GROUP, slim(GROUP, body(spec={}))), (GROUP, slim(GROUP, other)), (SERVICE, slim(SERVICE, body()))])

    assert seen.whole(KEY) is None
    assert names(seen.whole(("shop", "other"))) == []


def test_what_a_listing_does_not_find_any_more_is_gone() -> None:
    """A watch that was cut off for long says nothing of what was deleted meanwhile."""
    seen = Seen()
    read(seen, pod("clicks-0"), pod("clicks-1"))

    seen.listing()([(GROUP, slim(GROUP, body(spec={}))), (POD, slim(POD, pod("clicks-1")))])

    assert names(seen.whole(KEY)) == ["clicks-1"]
    seen.listing()([])
    assert seen.whole(KEY) is None


def test_of_an_object_only_what_is_looked_at_is_kept() -> None:
    metadata = {
        **body("clicks-0")["metadata"],
        "annotations": {"shardherd.dev/template-hash": "abc", "prometheus.io/port": "8090"},
        "labels": {**LABELS, "controller-revision-hash": "clicks-1"},
        "ownerReferences": [{"kind": "StatefulSet", "name": "clicks", "uid": "set", "controller": True}],
    }
    spec = {"nodeName": "node", "containers": [{"name": "driver", "image": "i", "env": []}], "volumes": []}
    terminated = {"exitCode": 1, "reason": "Error", "message": "boom", "startedAt": "then", "containerID": "x"}
    status = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "R", "message": "m", "lastTransitionTime": "then"},
            {"type": "Initialized", "status": "True"},
        ],
        "containerStatuses": [
            {
                "name": "driver",
                "image": "i",
                "imageID": "i@sha",
                "restartCount": 1,
                "ready": False,
                "state": {"running": {"startedAt": "then"}},
                "lastState": {"terminated": terminated},
            }
        ],
    }

    kept = slim(POD, {"metadata": metadata, "spec": spec, "status": status})

    assert kept == {
        "metadata": {
            "name": "clicks-0",
            "namespace": "shop",
            "uid": "uid-of-clicks-0",
            "resourceVersion": "1",
            "labels": LABELS,
            "annotations": {"shardherd.dev/template-hash": "abc"},
            "ownerReferences": [{"uid": "set", "controller": True}],
        },
        "spec": {"nodeName": "node", "containers": [{"name": "driver", "image": "i"}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "False", "message": "m"}],
            "containerStatuses": [
                {
                    "name": "driver",
                    "image": "i",
                    "ready": False,
                    "restartCount": 1,
                    "state": {"running": {}},
                    "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "boom"}},
                }
            ],
        },
    }
    assert slim(POD, kept) == kept


def test_of_a_group_it_is_kept_which_tool_declared_a_reset() -> None:
    group = body(spec={"paused": True}, status={"replicas": 1})
    owned: Json = {"f:reset": {"f:id": {}, "f:to": {}}, "f:paused": {}}
    group["metadata"]["managedFields"] = [
        {"manager": "kubectl-edit", "fieldsV1": {"f:spec": {"f:paused": {}}}},
        {"manager": "kubectl-patch", "fieldsV1": {"f:spec": owned}, "time": "then"},
        {"manager": "us", "subresource": "status", "fieldsV1": {"f:status": {}}},
    ]

    kept = slim(GROUP, group)

    assert kept["metadata"]["managedFields"] == [
        {"manager": "kubectl-patch", "fieldsV1": {"f:spec": {"f:reset": {"f:id": {}, "f:to": {}}}}}
    ]
    assert (kept["spec"], kept["status"]) == ({"paused": True}, {"replicas": 1})
    assert slim(GROUP, kept) == kept


def test_equal_names_of_many_objects_are_kept_once() -> None:
    one, other = (slim(POD, json.loads(json.dumps(pod("clicks-0")))) for _ in range(2))

    assert one["spec"]["nodeName"] is other["spec"]["nodeName"]
