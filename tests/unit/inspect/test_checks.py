"""What doctor says of a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardherd.core.model.reasons import ConditionType
from shardherd.core.planning.explaining import said_of
from shardherd.inspect.answers import Answer
from shardherd.inspect.checks import BAD, NONE, NOTE, Check, Examined, Right, doctor, missing
from tests.unit.inspect.observations import resource

LEADER = {"spec": {"holderIdentity": "shardherd-0_uid", "leaseDurationSeconds": 15}}


def operator(version: str = "0.1.0", ready: str = "True") -> dict[str, Any]:
    labels = {"app.kubernetes.io/version": version}
    return {"metadata": {"labels": labels}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


WELL = Examined(
    namespace="shop",
    operators="shardherd-system",
    version="0.1.0",
    server="Kubernetes v1.36.1",
    served=("v1alpha1",),
    definition={"properties": {"spec": {"properties": {"paused": {}}}}},
    schema={"properties": {"spec": {"properties": {"paused": {}}}}},
    rights=(
        Right("list", "pods", "to look at consumers", True, True),
        Right("patch", "pods", "to drain a consumer", False),
    ),
    clock=0.4,
    lease=LEADER,
    lease_age=3.0,
    pods=(operator(), operator(ready="False")),
    coordinator="ok",
    groups=(resource(),),
)

EXPECTED = (
    "VERDICT  CHECK                  FOUND\n"
    "ok       API server             Kubernetes v1.36.1\n"
    "ok       ConsumerGroup defined  v1alpha1 served\n"
    "ok       definition's fields    all that this version knows\n"
    "ok       list pods              to look at consumers\n"
    "unknown  patch pods             you may not: to drain a consumer\n"
    "ok       clock                  as the API server's, to a few seconds\n"
    "ok       leader                 shardherd-0_uid holds the Lease\n"
    "ok       operators              1 of 2 are ready\n"
    "ok       versions               0.1.0 here and there\n"
    "ok       coordinator            it says: ok\n"
    "ok       shop/clicks            2 consumers read 4 shards.\n"
    "ok       broker of shop/clicks  it answers the operator: 4 shards found.\n"
    "unknown  topics, producers      the brokers were not asked: say --brokers\n"
    "\n"
    "Nothing is wrong.\n"
)


def bad(**examined: Any) -> list[str]:
    """The lines of what is bad, or not known, besides what is so of a cluster that is well."""

    def lines(answer: Answer) -> list[str]:
        assert isinstance(answer.data, dict)
        return [" ".join(value or "-" for value in check.values()) for check in answer.data["checks"]]

    known = lines(doctor(WELL))
    found = lines(doctor(replace(WELL, **examined)))
    return [line for line in found if line not in known and line.startswith(("bad ", "unknown "))]


def test_a_cluster_that_is_well() -> None:
    answer = doctor(WELL)
    assert (answer.code, answer.text()) == (0, EXPECTED)


def test_whether_the_operators_choose_the_namespace_by_its_labels() -> None:
    def choosing(*selectors: str) -> tuple[dict[str, Any], ...]:
        named = [{"name": "SHARDHERD_WATCH_NAMESPACE_SELECTOR", "value": selector} for selector in selectors]
        unnamed = [{"name": "SHARDHERD_POD_NAME", "valueFrom": {}}]
        return (*WELL.pods, {**operator(), "spec": {"containers": [{"env": [*unnamed, *named]}, {}]}})  # type: ignore[misc]

    one: dict[str, Any] = {"pods": choosing("shardherd.dev/operator=a")}
    matching = doctor(replace(WELL, **one, labels={"shardherd.dev/operator": "a"}))
    assert (
        matching.code,
        "ok       namespace              its labels match shardherd.dev/operator=a\n" in matching.text(),
    ) == (0, True)
    assert bad(**one, labels={"shardherd.dev/operator": "b"}) == [
        "bad namespace shop is not served: its labels do not match shardherd.dev/operator=a label the namespace, or name that"
        " of the operators that serve it by --operator-namespace"
    ]
    assert bad(pods=choosing("team=red", "team=blue"), labels={"team": "blue"}) == []
    assert bad(**one, refused={"labels": "403"}) == ["unknown namespace 403; its labels must match shardherd.dev/operator=a -"]
    assert bad(pods=choosing("team in red"), labels={})[0].startswith(
        "bad namespace the operators' selector: 'team in red' is none of key"
    )


def test_what_is_bad_has_a_remedy_and_an_exit_code() -> None:
    answer = doctor(replace(WELL, lease_age=31.0, groups=()))
    assert answer.code == 3
    assert answer.text().splitlines()[-2:] == [
        "1 of 10 checks are bad.",
        "leader: see the operators' pods and logs",
    ]
    assert bad(lease_age=31.0) == [
        "bad leader shardherd-0_uid renewed the Lease last 31 s ago see the operators' pods and logs"
    ]
    assert bad(lease={"spec": {"holderIdentity": ""}}) == [
        "bad leader nobody holds the Lease in namespace shardherd-system (--operator-namespace) see the operators'"
        " pods and logs"
    ]
    assert bad(lease=None, refused={"lease": NONE}) == [
        "bad leader there is no Lease in namespace shardherd-system (--operator-namespace) install the chart, or name its"
        " namespace and --release"
    ]
    assert bad(rights=(Right("list", "pods", "to look at consumers", False, True),)) == [
        "bad list pods you may not: to look at consumers ask for the role `view` in this namespace"
    ]
    assert bad(clock=-9.0) == [
        "bad clock this machine is 9 s behind the API server synchronise it: ages that are shown are wrong by as much"
    ]
    assert bad(pods=(operator("0.2.0"),)) == [
        "bad versions 0.1.0 here, 0.2.0 there use the command line of the operator's version"
    ]
    assert bad(pods=()) == [
        "bad operators no pod of an operator in namespace shardherd-system (--operator-namespace) install the chart,"
        " or name its"
        " namespace"
    ]
    assert bad(pods=(operator(ready="False"),)) == ["bad operators 0 of 1 are ready see their events and logs"]
    assert bad(coordinator="not leading") == ["bad coordinator it says: not leading see the operators' pods and logs"]
    assert bad(served=None, refused={"served": "404"}) == [
        "bad ConsumerGroup defined 404 install the chart, or apply crds/consumergroup.yaml"
    ]
    assert bad(definition={"properties": {"spec": {}}}) == [
        "bad definition's fields 1 fields of this version are not in it, first spec.paused apply crds/consumergroup.yaml of the"
        " operator's version"
    ]


def test_what_may_not_be_read_is_unknown_and_not_bad() -> None:
    refused = dict.fromkeys(("definition", "lease", "pods", "coordinator", "clock", "groups"), "403")
    blind: dict[str, Any] = dict.fromkeys(refused) | {"refused": refused}
    assert bad(**blind) == [
        "unknown definition's fields 403 -",
        "unknown clock 403 -",
        "unknown leader 403; looked in namespace shardherd-system (--operator-namespace) -",
        "unknown operators 403; looked in namespace shardherd-system (--operator-namespace) -",
        "unknown coordinator 403 name its address by --api to have it asked",
        "unknown groups 403 -",
    ]
    assert doctor(replace(WELL, **blind)).code == 0


def test_a_cluster_that_does_not_answer() -> None:
    nothing = Examined("shop", "shardherd-system", "0.1.0", refused={"server": "no answer"})
    answer = doctor(nothing)
    assert answer.code == 3
    assert answer.text() == (
        "VERDICT  CHECK       FOUND\n"
        "bad      API server  no answer\n"
        "\n"
        "1 of 1 checks are bad.\n"
        "API server: check --context, --kubeconfig and your credentials\n"
    )


def test_a_group_that_is_not_ready_is_bad_with_its_reason_and_remedy() -> None:
    crashing = resource(conditions={"Ready": ("False", "CrashLooping", "it ended with exit code 1")})
    assert bad(groups=(crashing,)) == [
        "bad shop/clicks CrashLooping: it ended with exit code 1 read the driver's log (--previous)"
        "; on one machine: shardherd local logs CONSUMER --previous"
    ]
    unseen = resource(status={"observedGeneration": 0})
    assert bad(groups=(unseen,)) == ["unknown shop/clicks the operator has not seen its last edit yet -"]
    silent = resource(status={"conditions": []})
    assert bad(groups=(silent,)) == [
        "bad shop/clicks the operator has said nothing of it see whether an operator serves this namespace"
    ]


def test_a_broker_that_does_not_answer_the_operator_is_bad() -> None:
    away = resource(conditions={"SourceReachable": ("False", "SourceUnavailable", "no Kafka broker answers")})
    remedy = said_of("SourceUnavailable", ConditionType.SOURCE_REACHABLE)[1]
    assert bad(groups=(away,)) == [f"bad broker of shop/clicks SourceUnavailable: no Kafka broker answers {remedy}"]
    unasked = resource(conditions={"SourceReachable": ("Unknown", "Discovering", "not yet")})
    assert bad(groups=(unasked,)) == ["unknown broker of shop/clicks Discovering: not yet -"]


def test_what_brokers_say_is_a_part_of_it() -> None:
    answer = doctor(WELL, [Check("replicas of shop/clicks", NOTE, "1"), Check("batches of shop/clicks", BAD, "large", "mend")])
    assert answer.code == 3
    assert answer.text().splitlines()[-5:] == [
        "note     replicas of shop/clicks  1",
        "bad      batches of shop/clicks   large",
        "",
        "1 of 14 checks are bad.",
        "batches of shop/clicks: mend",
    ]


def test_fields_that_are_missing_are_found_below_lists_too() -> None:
    wanted: dict[str, Any] = {"properties": {"a": {"items": {"properties": {"b": {}, "c": {}}}}, "d": {}}}
    assert missing(wanted, {"properties": {"a": {"items": {"properties": {"b": {}}}}}}) == ["a[].c", "d"]
    assert missing(wanted, wanted) == []
