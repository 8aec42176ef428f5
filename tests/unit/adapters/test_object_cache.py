"""What is known of a group's objects without asking the API server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardherd.adapters.kubernetes.object_cache import BUDGET, GROUP, POD, SERVICE, STATEFUL_SET, ObjectCache, slim
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


def test_the_resources_of_all_groups_that_are_known_are_given() -> None:
    cache = ObjectCache()
    cache.update(GROUP, body(spec={"paused": True}))
    cache.update(GROUP, body("views"))
    cache.update(POD, pod("clicks-0"))
    assert [(each["metadata"]["name"], each.get("spec")) for each in cache.groups()] == [
        ("clicks", {"paused": True}),
        ("views", None),
    ]
    cache.update(GROUP, body("views"), gone=True)
    assert [each["metadata"]["name"] for each in cache.groups()] == ["clicks"]


def names(found: GroupObjects | None) -> list[str] | None:
    """The pods that are known; None if the group is not."""
    return None if found is None else [item["metadata"]["name"] for item in found.pods]


def read(cache: ObjectCache, *pods: Json, version: int = 1) -> None:
    """The group was read from the API server, with these pods."""
    kept = tuple(slim(POD, item) for item in pods)
    cache.fill(
        KEY,
        GroupObjects(body(spec={}, version=version), slim(STATEFUL_SET, stateful_set(2, version)), pods=kept),
        cache.touched(KEY),
    )


def test_a_group_is_known_once_it_was_read() -> None:
    cache = ObjectCache()
    cache.update(POD, pod("clicks-0"))
    assert cache.complete(KEY) is None

    read(cache, pod("clicks-0"))

    found = cache.complete(KEY)
    assert found is not None
    assert (found.stateful_set or {})["spec"] == {"replicas": 2}
    assert (names(found), found.service, found.budget) == (["clicks-0"], None, None)


def test_nobody_need_read_a_group_that_is_made_after_everything_was_listed() -> None:
    cache = ObjectCache()
    cache.listing()([])

    cache.update(GROUP, body(spec={}))

    assert cache.complete(KEY) == GroupObjects(slim(GROUP, body(spec={})))


def test_a_new_group_is_read_if_there_may_be_more_of_it_than_the_watches_have_told() -> None:
    unlisted, begun_anew, listed, known, left = ObjectCache(), ObjectCache(), ObjectCache(), ObjectCache(), ObjectCache()
    for cache in (begun_anew, listed, known, left):
        cache.listing()([])
    begun_anew.update(POD, pod("others-0", metadata={**body("others-0")["metadata"], "labels": {}}), listed=True)
    known.update(POD, pod("clicks-0"))
    left.fill(KEY, None, left.touched(KEY))

    for cache in (unlisted, begun_anew, known, left):
        cache.update(GROUP, body(spec={}))
    listed.update(GROUP, body(spec={}), listed=True)

    assert [cache.complete(KEY) for cache in (unlisted, begun_anew, listed, known, left)] == [None] * 5


def test_somebody_elses_object_under_the_groups_name_is_not_remembered_as_no_watch_tells_when_it_goes() -> None:
    cache = ObjectCache()
    theirs = body()
    del theirs["metadata"]["labels"]

    cache.fill(KEY, GroupObjects(body(spec={}), stateful_set(2, 1), service=theirs), cache.touched(KEY))

    found = cache.complete(KEY)
    assert found is not None
    assert found.service is None


def test_what_changed_while_it_was_read_makes_it_be_read_once_more() -> None:
    cache = ObjectCache()
    touched = cache.touched(KEY)
    cache.update(POD, pod("clicks-0"), gone=True)

    cache.fill(KEY, GroupObjects(body(spec={}), pods=(pod("clicks-0"),)), touched)

    assert cache.complete(KEY) is None


def test_watches_keep_what_is_known_up_to_date() -> None:
    cache = ObjectCache()
    read(cache, pod("clicks-0"))

    assert cache.update(POD, pod("clicks-1", 5))
    assert cache.update(POD, pod("clicks-0", 6), gone=True)
    assert cache.update(STATEFUL_SET, stateful_set(3, 7))

    found = cache.complete(KEY)
    assert names(found) == ["clicks-1"]
    assert found is not None
    assert (found.stateful_set or {})["spec"] == {"replicas": 3}


@pytest.mark.parametrize("kind", [STATEFUL_SET, SERVICE, BUDGET])
def test_what_lost_its_label_is_told_as_gone_and_may_be_there_still(kind: str) -> None:
    cache = ObjectCache()
    read(cache, pod("clicks-0"))
    cache.update(kind, stateful_set(2, 5))
    assert cache.has(KEY, kind)

    assert cache.update(kind, stateful_set(2, 6), gone=True)

    assert (cache.has(KEY, kind), cache.complete(KEY)) == (False, None)


def test_an_older_version_changes_nothing() -> None:
    cache = ObjectCache()
    read(cache)
    cache.update(STATEFUL_SET, stateful_set(4, 10))

    assert not cache.update(STATEFUL_SET, stateful_set(3, 9))

    found = cache.complete(KEY)
    assert found is not None
    assert (found.stateful_set or {})["spec"] == {"replicas": 4}


def test_of_two_objects_under_one_name_the_end_of_the_former_is_no_end_of_the_latter() -> None:
    cache = ObjectCache()
    read(cache, pod("clicks-0"))
    cache.update(POD, pod("clicks-0", 20) | {"metadata": body("clicks-0", 20, uid="another")["metadata"]})

    cache.update(POD, pod("clicks-0", 18))
    cache.update(POD, pod("clicks-0", 19), gone=True)

    found = cache.complete(KEY)
    assert found is not None
    assert [item["metadata"]["uid"] for item in found.pods] == ["another"]


def test_what_the_controller_does_not_look_at_is_no_news() -> None:
    cache = ObjectCache()
    read(cache, pod("clicks-0"))

    assert not cache.update(STATEFUL_SET, stateful_set(2, 30))
    assert not cache.update(POD, pod("clicks-0", 31))
    assert cache.update(POD, pod("clicks-0", 32, phase="Failed"))
    assert cache.update(BUDGET, body(version=33))
    assert not cache.update(BUDGET, body(version=34, status={"disruptionsAllowed": 1}))


def test_a_write_of_unknown_outcome_makes_the_group_be_read_again() -> None:
    cache = ObjectCache()
    read(cache, pod("clicks-0"))
    cache.invalidate_pod("shop", "clicks-0")
    assert cache.complete(KEY) is None

    read(cache, pod("clicks-0"))
    cache.invalidate(KEY)
    assert cache.complete(KEY) is None


def test_a_group_that_is_gone_is_not_known() -> None:
    cache = ObjectCache()
    read(cache)
    cache.update(GROUP, body(spec={}, version=40), gone=True)
    assert cache.complete(KEY) is None

    cache.fill(KEY, None, cache.touched(KEY))
    assert cache.complete(KEY) is None


def test_a_listing_makes_every_group_known_but_those_that_change_meanwhile() -> None:
    cache = ObjectCache()
    cache.update(POD, pod("clicks-0"))
    listed = cache.listing()
    other = body("other", spec={}) | {"metadata": {**body("other")["metadata"], "labels": {}}}
    cache.update(POD, pod("clicks-1"))

    listed([(GROUP, slim(GROUP, body(spec={}))), (GROUP, slim(GROUP, other)), (SERVICE, slim(SERVICE, body()))])

    assert cache.complete(KEY) is None
    assert names(cache.complete(("shop", "other"))) == []


def test_what_a_listing_does_not_find_any_more_is_gone() -> None:
    """A watch that was cut off for long says nothing of what was deleted meanwhile."""
    cache = ObjectCache()
    read(cache, pod("clicks-0"), pod("clicks-1"))

    cache.listing()([(GROUP, slim(GROUP, body(spec={}))), (POD, slim(POD, pod("clicks-1")))])

    assert names(cache.complete(KEY)) == ["clicks-1"]
    cache.listing()([])
    assert cache.complete(KEY) is None


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


def elsewhere(made: Json) -> Json:
    return {**made, "metadata": {**made["metadata"], "namespace": "web"}}


def test_of_a_namespace_that_is_left_nothing_is_kept_and_others_stay() -> None:
    cache = ObjectCache()
    read(cache, pod("clicks-0"))
    cache.update(POD, elsewhere(pod("clicks-0")))
    assert len(cache) == 2

    cache.left("web")

    assert (len(cache), names(cache.complete(KEY))) == (1, ["clicks-0"])
    cache.left("shop")
    assert (len(cache), cache.complete(KEY), cache.groups()) == (0, None, [])
    cache.invalidate(KEY)
    assert len(cache) == 0, "of a write that was under way"


def test_what_was_read_of_a_namespace_before_it_was_left_is_not_taken_for_what_is_there_when_it_comes_back() -> None:
    cache = ObjectCache()
    for _ in range(3):
        cache.update(POD, pod("clicks-0", _ + 1))
    touched = cache.touched(KEY)
    stale = GroupObjects(body(spec={}), pods=(pod("clicks-0"),))
    cache.left("shop")

    cache.fill(KEY, stale, touched)
    assert len(cache) == 0

    cache.joined("shop")
    for version in (4, 5, 6):
        cache.update(POD, pod("clicks-1", version))
        cache.fill(KEY, stale, touched)
    assert cache.complete(KEY) is None


def test_a_group_of_a_namespace_that_joins_is_read_as_its_objects_were_shown_to_nobody_before() -> None:
    cache = ObjectCache()
    cache.listing()([])
    cache.joined("shop")

    cache.update(GROUP, body(spec={}))
    cache.update(GROUP, elsewhere(body(spec={})))

    assert cache.complete(KEY) is None
    assert cache.complete(("web", "clicks")) is not None
    cache.listing()([(GROUP, slim(GROUP, body(spec={}, version=2)))])
    cache.update(GROUP, body("new", spec={}))
    assert cache.complete(KEY) is not None
    assert cache.complete(("shop", "new")) is not None, "all of the namespace was listed since"


def test_a_listing_says_nothing_of_a_namespace_that_joined_or_was_left_meanwhile() -> None:
    cache = ObjectCache()
    cache.listing()([])
    read(cache)
    listed = cache.listing()
    cache.left("shop")
    cache.joined("web")
    listed([(GROUP, slim(GROUP, made)) for made in (body(spec={}), elsewhere(body(spec={})))])

    assert len(cache) == 0
    cache.update(GROUP, elsewhere(body(spec={}, version=2)))
    assert cache.complete(("web", "clicks")) is None, "it joined since the listing began, and is read by itself"
    cache.joined("shop")
    cache.left("shop")
    cache.joined("shop")
    cache.update(GROUP, body(spec={}))
    assert cache.complete(KEY) is None
