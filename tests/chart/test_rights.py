"""What each account may do: asked of a real API server for every verb on everything that matters, and compared as a whole."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest
import yaml

from dev.cluster import Cluster, ClusterError
from shardherd.adapters.kubernetes.operators import LEADER_LABEL
from tests.chart.installed import VERBS, Installed, Rights, install
from tests.chart.rendering import EVERYTHING, ROLES_ONLY, SELECTED, Chart, Json
from tests.harness.cluster import Names
from tests.harness.definition import RESOURCE
from tests.integration.controller.bench import until

GROUP: Json = {
    "apiVersion": "shardherd.dev/v1alpha1",
    "kind": "ConsumerGroup",
    "metadata": {"name": "clicks"},
    "spec": {
        "source": {"kafka": {"bootstrapServers": "kafka:9092", "topics": ["clicks"]}},
        "application": {"image": "example/clicks:1", "mainApplicationFile": "/app.py"},
    },
}

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "victim", "labels": {"app": "ours"}},
    "spec": {"containers": [{"name": "main", "image": "example/main:1"}]},
}

GROUPS: Rights = {
    "consumergroups": "get list watch",
    "consumergroups/status": "get patch",
    "consumergroups/finalizers": "update",
    "statefulsets": "get list watch create patch",
    "services": "get list watch create patch",
    "poddisruptionbudgets": "get list watch create patch",
    "pods": "get list watch delete",
    "pods/log": "get",
    "configmaps": "get create update delete",
    "secrets": "get",
    "events": "list create patch",
    "localsubjectaccessreviews": "create",
}
"""What the operator may do where it serves groups."""

OWN: Rights = {"leases": "create", "pods": "get list patch"}
"""What it may do where it is itself."""


LOOK = "get list watch"
VIEW: Rights = {"consumergroups": LOOK, "consumergroups/status": LOOK, "consumergroups/scale": LOOK}
EDIT: Rights = {**VIEW, "consumergroups": " ".join(VERBS), "consumergroups/scale": f"{LOOK} update patch"}
"""What people may do who have Kubernetes' own roles."""


def together(*rights: Rights) -> Rights:
    """All of these, each verb once."""
    verbs = {name: {verb for each in rights for verb in each.get(name, "").split()} for each in rights for name in each}
    return {name: " ".join(verb for verb in VERBS if verb in wanted) for name, wanted in verbs.items()}


@pytest.fixture(scope="module")
def everywhere(chart: Chart, cluster: Cluster, names: Names) -> Iterator[Installed]:
    """A release that serves all namespaces, which takes a choice."""
    yield from install(chart, cluster, names, {"watchAllNamespaces": True})


@pytest.fixture(scope="module")
def by_default(chart: Chart, cluster: Cluster, names: Names) -> Iterator[Installed]:
    """A release that is told of the namespace of its applications, and of nothing else."""
    yield from install(chart, cluster, names, {})


@pytest.fixture(scope="module")
def selecting(chart: Chart, cluster: Cluster, names: Names) -> Iterator[Installed]:
    """A release that chooses namespaces by their labels."""
    yield from install(chart, cluster, names, SELECTED)


@pytest.fixture(scope="module")
def roles_only(chart: Chart, cluster: Cluster, names: Names) -> Iterator[Installed]:
    """A release without a ClusterRole."""
    yield from install(chart, cluster, names, ROLES_ONLY)


def test_the_operator_may_do_with_groups_what_it_does_and_no_more(everywhere: Installed) -> None:
    account = f"{everywhere.own}-shardherd"
    review = {"tokenreviews": "create"}
    assert everywhere.may(account, everywhere.served) == together(GROUPS, review)
    assert everywhere.may(account, everywhere.own) == together(GROUPS, review, OWN)


def test_by_default_it_may_do_nothing_where_no_groups_are_but_ask_whose_token_it_is(by_default: Installed) -> None:
    account, review = f"{by_default.own}-shardherd", {"tokenreviews": "create"}
    assert by_default.may(account, by_default.served) == together(GROUPS, review)
    assert by_default.may(account, by_default.own) == together(OWN, review)
    assert by_default.may(account, by_default.elsewhere) == review
    assert by_default.may(account, "kube-system") == review
    assert by_default.may(account, "") == review


def test_with_a_selector_it_may_do_everywhere_what_it_does_with_groups_and_read_namespaces(selecting: Installed) -> None:
    account, always = f"{selecting.own}-shardherd", {"tokenreviews": "create", "namespaces": LOOK}
    assert selecting.may(account, selecting.elsewhere) == together(GROUPS, always)
    assert selecting.may(account, selecting.own) == together(GROUPS, always, OWN)


def test_with_roles_only_it_may_do_nothing_elsewhere(roles_only: Installed) -> None:
    account = f"{roles_only.own}-shardherd"
    assert roles_only.may(account, roles_only.served) == together(GROUPS, {"serviceaccounts": "get"})
    assert roles_only.may(account, roles_only.own) == OWN
    assert roles_only.may(account, roles_only.elsewhere) == {}
    assert roles_only.may(account, "") == {}


def test_of_secrets_beside_it_it_reads_and_changes_its_own_alone(roles_only: Installed) -> None:
    account = f"{roles_only.own}-shardherd"
    assert roles_only.may(account, roles_only.own, name=f"{account}-tls")["secrets"] == "get patch"
    assert "secrets" not in roles_only.may(account, roles_only.own, name="another")


def test_of_configmaps_where_groups_are_it_patches_the_authorities_alone(roles_only: Installed) -> None:
    account = f"{roles_only.own}-shardherd"
    assert roles_only.may(account, roles_only.served, name="shardherd-ca")["configmaps"] == "get create update patch delete"
    assert roles_only.may(account, roles_only.served, name="another")["configmaps"] == "get create update delete"


def test_of_leases_it_may_change_its_own_alone(everywhere: Installed) -> None:
    account = f"{everywhere.own}-shardherd"
    assert everywhere.may(account, everywhere.own, name=account)["leases"] == "get create update"
    assert everywhere.may(account, everywhere.own, name="another")["leases"] == "create"


def patch(installed: Installed, change: Json) -> str | None:
    """What the API server says to the operator's patch of the pod beside it, None if it is done."""
    account = f"system:serviceaccount:{installed.own}:{installed.own}-shardherd"
    try:
        installed.cluster.kubectl(*("-n", installed.own, "patch", "pod", "victim", "-p", json.dumps(change), "--as", account))
    except ClusterError as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def pod(everywhere: Installed) -> str:
    """A pod beside the operator; the admission policy holds by now."""
    everywhere.cluster.kubectl("-n", everywhere.own, "create", "-f", "-", input=yaml.safe_dump(POD))
    tries = itertools.count()

    def holds() -> bool:
        # In the policy's words: without its rights the operator would be refused, too.
        return "of a pod's labels" in (patch(everywhere, {"metadata": {"labels": {"probe": str(next(tries))}}}) or "")

    until(holds)
    return "victim"


class TestLabels:
    """Of the pods beside it the operator may change the leader's label only."""

    def test_it_gives_and_takes_the_leaders_label(self, everywhere: Installed, pod: str) -> None:
        assert patch(everywhere, {"metadata": {"labels": {LEADER_LABEL: "true"}}}) is None
        assert patch(everywhere, {"metadata": {"labels": {LEADER_LABEL: None}}}) is None

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"metadata": {"labels": {"app": "another"}}}, "of a pod's labels"),
            ({"metadata": {"labels": {"app": None}}}, "of a pod's labels"),
            ({"metadata": {"annotations": {"a": "b"}}}, "annotations, owners or finalizers"),
            ({"metadata": {"finalizers": ["example.com/ours"]}}, "annotations, owners or finalizers"),
            ({"spec": {"activeDeadlineSeconds": 1}}, "a pod's spec"),
            ({"spec": {"containers": [{"name": "main", "image": "evil:1"}]}}, "a pod's spec"),
        ],
    )
    def test_and_nothing_else(self, everywhere: Installed, pod: str, change: Json, said: str) -> None:
        answer = patch(everywhere, change)
        assert answer is not None
        assert said in answer

    def test_others_are_not_limited_by_it(self, everywhere: Installed, pod: str) -> None:
        everywhere.cluster.kubectl("-n", everywhere.own, "label", "pod", pod, "by=an-admin")


WRITER = "writer"
"""An account of the namespace that may write any ConfigMap of it, as far as Roles go."""


def write(installed: Installed, verb: str, manifest: Json) -> None:
    """A ConfigMap, or what the manifest says, where groups are served."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", **manifest}
    installed.cluster.kubectl("-n", installed.served, verb, "-f", "-", input=yaml.safe_dump(body))


def refused(installed: Installed, *command: str, by: str = WRITER) -> str | None:
    """What the API server says to this account's command, None if it is done."""
    where = installed.own if by.endswith("-shardherd") else installed.served
    who = ("--as", f"system:serviceaccount:{where}:{by}", "--as-group", f"system:serviceaccounts:{where}")
    groups = ("--as-group", "system:serviceaccounts", "--as-group", "system:authenticated")
    try:
        installed.cluster.kubectl("-n", installed.served, *command, *who, *groups)
    except ClusterError as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def kept(everywhere: Installed) -> str:
    """A namespace with a group's state, the authorities and a ConfigMap of Spark's; the admission policy holds by now."""
    served = everywhere.served
    write(everywhere, "create", GROUP)
    for made in (
        ("serviceaccount", WRITER),
        ("role", WRITER, f"--verb={','.join(VERBS)}", "--resource=configmaps"),
        ("rolebinding", WRITER, f"--role={WRITER}", f"--serviceaccount={served}:{WRITER}"),
    ):
        everywhere.cluster.kubectl("-n", served, "create", *made)
    uid = everywhere.cluster.kubectl("-n", served, "get", RESOURCE, "clicks", "-o", "jsonpath={.metadata.uid}")
    # Without its owner it would be collected as garbage.
    owner = {"apiVersion": GROUP["apiVersion"], "kind": GROUP["kind"], "name": "clicks", "uid": uid, "controller": True}
    for name, owners in (("clicks-state", [owner]), ("shardherd-ca", []), ("spark-exec-1", [])):
        metadata = {"name": name, "labels": {"of": "this-test"}, "ownerReferences": owners}
        write(everywhere, "create", {"metadata": metadata})
    tries = itertools.count()

    def holds() -> bool:
        change = ("patch", "configmap", "shardherd-ca", "-p", json.dumps({"data": {"probe": str(next(tries))}}))
        # In the policy's words: without its rights the account would be refused, too.
        return "only the operator may write ConfigMap" in (refused(everywhere, *change) or "")

    until(holds)
    return served


class TestState:
    """What the operator keeps of a group, and by whom it is believed, no account of the group's own namespace may write."""

    @pytest.mark.parametrize("name", ["clicks-state", "shardherd-ca"])
    @pytest.mark.parametrize("verb", ["patch", "delete"])
    def test_an_account_of_the_namespace_may_not_write_it(self, everywhere: Installed, kept: str, name: str, verb: str) -> None:
        change = {"patch": ("-p", json.dumps({"data": {"forged": "yes"}})), "delete": ()}[verb]
        said = refused(everywhere, verb, "configmap", name, *change)
        assert said is not None
        assert f"only the operator may write ConfigMap {name}, which it keeps for the groups of this namespace" in said

    def test_nor_with_all_others_at_once(self, everywhere: Installed, kept: str) -> None:
        refused(everywhere, "delete", "configmap", "-l", "of=this-test")
        left = everywhere.cluster.kubectl("-n", kept, "get", "configmap", "-l", "of=this-test", "-o", "name").split()
        assert {"configmap/clicks-state", "configmap/shardherd-ca"} <= set(left)

    def test_but_may_write_others(self, everywhere: Installed, kept: str) -> None:
        assert refused(everywhere, "create", "configmap", "spark-exec-2") is None
        assert refused(everywhere, "delete", "configmap", "spark-exec-2") is None

    def test_the_operator_and_people_may(self, everywhere: Installed, kept: str) -> None:
        change = ("patch", "configmap", "shardherd-ca", "-p", json.dumps({"data": {"ca.crt": "new"}}))
        assert refused(everywhere, *change, by=f"{everywhere.own}-shardherd") is None
        everywhere.cluster.kubectl("-n", kept, "delete", "configmap", "clicks-state")


def test_a_driver_may_run_its_executors_where_it_is(everywhere: Installed) -> None:
    served = everywhere.served
    assert everywhere.may("shardherd-spark", served, of=served) == {
        "consumergroups/executors": "create",
        "pods": "get list watch create patch delete deletecollection",
        "configmaps": "create deletecollection",
        "persistentvolumeclaims": "list create deletecollection",
    }
    assert everywhere.may("shardherd-spark", everywhere.elsewhere, of=served) == {}
    assert everywhere.may("shardherd-spark", "", of=served) == {}


def test_an_executor_may_do_nothing(everywhere: Installed) -> None:
    for account in ("shardherd-spark-executor", "shardherd-worker"):
        assert everywhere.may(account, everywhere.served, of=everywhere.served) == {}


def test_nor_may_the_charts_own_test(everywhere: Installed) -> None:
    assert everywhere.may(f"{everywhere.own}-shardherd-test", everywhere.own) == {}


@pytest.mark.parametrize(
    ("role", "rights"),
    [
        ("view", {**VIEW, "consumergroups/checkpoints": "get"}),
        ("edit", {**EDIT, "consumergroups/checkpoints": "get"}),
        ("admin", {**EDIT, "consumergroups/checkpoints": "get update"}),
    ],
)
def test_kubernetes_own_roles_reach_groups(everywhere: Installed, role: str, rights: Rights) -> None:
    served = everywhere.served
    everywhere.cluster.kubectl("-n", served, "create", "serviceaccount", role)
    everywhere.cluster.kubectl(
        "-n", served, "create", "rolebinding", role, f"--clusterrole={role}", f"--serviceaccount={served}:{role}"
    )

    def ours() -> Rights:
        may = everywhere.may(role, served, of=served, group="shardherd.dev")
        return {name: verbs for name, verbs in may.items() if verbs}

    # The controller manager puts the roles together, which takes it a moment.
    until(lambda: ours() == rights, ours)


@pytest.mark.parametrize("values", [{}, EVERYTHING, ROLES_ONLY])
def test_no_rendered_right_has_a_wildcard_or_reads_secrets(chart: Chart, values: Json) -> None:
    roles = [item for item in chart.render(values) if item["kind"] in ("Role", "ClusterRole")]
    rules = [rule for role in roles for rule in role["rules"]]
    assert len(roles) >= 3
    assert [rule for rule in rules if "*" in {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}] == []
    secrets = [rule for rule in rules if "secrets" in rule["resources"]]
    assert [rule for rule in secrets if not set(rule["verbs"]) <= {"get"} and "resourceNames" not in rule] == []
    assert {verb for rule in secrets for verb in rule["verbs"]} == {"get", "patch"}
    assert [rule for rule in rules if {"escalate", "bind", "impersonate"} & set(rule["verbs"])] == []
    assert [rule for rule in rules if "nonResourceURLs" in rule] == []


def test_with_roles_only_nothing_is_of_the_cluster(chart: Chart) -> None:
    assert {item["kind"] for item in chart.render(ROLES_ONLY) if "namespace" not in item["metadata"]} == set()
