"""A release's accounts, roles and admission policies on a real API server, and what they let an account do.

Used by the tests of the chart's rights. Installs no operator.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import yaml

from dev.cluster import Cluster
from shardherd.adapters.kubernetes.api import KubernetesApi
from tests.chart.rendering import Chart, Json
from tests.harness.cluster import Names
from tests.harness.definition import define_resource
from tests.integration.controller.bench import unique, until

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
SPECIAL = {"clusterroles": ("bind", "escalate"), "roles": ("bind", "escalate"), "serviceaccounts": ("impersonate",)}
RESOURCES = {
    "shardherd.dev": [
        f"consumergroups{part}" for part in ("", "/status", "/scale", "/finalizers", "/checkpoints", "/executors")
    ],
    "": [
        *("pods", "pods/status", "pods/log", "pods/exec", "pods/attach", "pods/portforward", "pods/eviction", "secrets"),
        *("configmaps", "services", "events", "serviceaccounts", "serviceaccounts/token", "persistentvolumeclaims"),
        *("endpoints", "resourcequotas", "replicationcontrollers", "namespaces", "nodes", "nodes/proxy", "persistentvolumes"),
    ],
    "apps": ["statefulsets", "statefulsets/scale", "deployments", "daemonsets", "replicasets"],
    "batch": ["jobs", "cronjobs"],
    "policy": ["poddisruptionbudgets"],
    "coordination.k8s.io": ["leases"],
    "networking.k8s.io": ["networkpolicies", "ingresses"],
    "rbac.authorization.k8s.io": ["roles", "rolebindings", "clusterroles", "clusterrolebindings"],
    "authentication.k8s.io": ["tokenreviews"],
    "authorization.k8s.io": ["subjectaccessreviews", "localsubjectaccessreviews"],
    "admissionregistration.k8s.io": ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"],
    "apiextensions.k8s.io": ["customresourcedefinitions"],
}

Rights = dict[str, str]
"""Verbs by resource."""


@dataclass
class Installed:
    """Rights of a release, in namespaces of their own: the release's, one that is served, and one that is not its business."""

    cluster: Cluster
    api: KubernetesApi
    own: str
    served: str
    elsewhere: str

    def may(self, account: str, namespace: str, *, of: str = "", name: str = "", group: str | None = None) -> Rights:
        """What an account may do in a namespace (of the cluster, if it is empty), by asking for everything.

        `of` is the account's namespace, by default the release's; with `group` only that API group is asked about.
        """

        def ask(question: tuple[str, str, str]) -> bool:
            group, resource, verb = question
            kind, _, subresource = resource.partition("/")
            attributes = {"group": group, "resource": kind, "subresource": subresource, "verb": verb}
            where = of or self.own
            spec = {
                "user": f"system:serviceaccount:{where}:{account}",
                "groups": ["system:serviceaccounts", f"system:serviceaccounts:{where}", "system:authenticated"],
                "resourceAttributes": {**attributes, "namespace": namespace, "name": name},
            }
            answer = self.api.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
            return bool(answer["status"]["allowed"])

        questions = [
            (api_group, resource, verb)
            for api_group, resources in RESOURCES.items()
            if group in (None, api_group)
            for resource in resources
            for verb in (*VERBS, *SPECIAL.get(resource, ()))
        ]
        with ThreadPoolExecutor(8) as pool:
            answers = zip(questions, pool.map(ask, questions), strict=True)
            allowed = [(resource, verb) for (_, resource, verb), yes in answers if yes]
        return {key: " ".join(verb for _, verb in found) for key, found in itertools.groupby(allowed, lambda each: each[0])}


def _until_heard_of(cluster: Cluster, api: KubernetesApi, name: str) -> None:
    """Until the API server authorizes by all roles and bindings that it was given so far.

    It hears of those of each kind in their order, a little later than it has them: so of these, which come last, last.
    """
    by = ("--verb=get", "--resource=leases.coordination.k8s.io", f"--resource-name={name}-last")
    whom = f"--user={name}-last"
    for kind, where in (("role", ("-n", name)), ("clusterrole", ())):
        cluster.kubectl(*where, "create", kind, f"{name}-last", *by)
        cluster.kubectl(*where, "create", f"{kind}binding", f"{name}-last-{kind}", f"--{kind}={name}-last", f"{whom}-{kind}")

    def allowed(kind: str, namespace: str) -> bool:
        attributes = {"group": "coordination.k8s.io", "resource": "leases", "verb": "get", "name": f"{name}-last"}
        spec = {"user": f"{name}-last-{kind}", "resourceAttributes": {**attributes, "namespace": namespace}}
        answer = api.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
        return bool(answer["status"]["allowed"])

    until(lambda: allowed("role", name) and allowed("clusterrole", ""))
    cluster.kubectl("delete", f"clusterrole/{name}-last", f"clusterrolebinding/{name}-last-clusterrole")


def install(chart: Chart, cluster: Cluster, names: Names, values: Json) -> Iterator[Installed]:
    define_resource(cluster)
    own, served, elsewhere = (unique(names, prefix) for prefix in ("operator", "served", "elsewhere"))
    for namespace in (own, served, elsewhere):
        cluster.kubectl("create", "namespace", namespace)
    values = {**values, "applicationNamespaces": [served]}
    if values.get("watchNamespaces"):
        values["watchNamespaces"] = [served]
    wanted = [
        item
        for item in chart.render(values, release=own, namespace=own)
        if "Role" in item["kind"] or item["kind"] == "ServiceAccount" or "Admission" in item["kind"]
    ]
    text = yaml.safe_dump_all(wanted)
    cluster.kubectl("apply", "-f", "-", input=text)
    api = KubernetesApi.from_kubeconfig(cluster.kubeconfig)
    _until_heard_of(cluster, api, own)
    yield Installed(cluster, api, own, served, elsewhere)
    api.close()
    cluster.kubectl("delete", "-f", "-", input=text)
    for namespace in (own, served, elsewhere):
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
