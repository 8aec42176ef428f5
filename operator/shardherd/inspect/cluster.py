"""Reads groups through the API server, with the rights of the user's kubeconfig, and writes what `changes` made.

Looking sends nothing but GET, and two reviews of one's own rights and name that every user may send. What may not be read is
missing from the observation, which says so; only the group itself must be readable. Decides nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from kubernetes import config
from kubernetes.client.configuration import Configuration

from shardherd.adapters.kubernetes.api import MERGE_PATCH, ApiError, ApiUnavailableError, KubernetesApi
from shardherd.adapters.kubernetes.ownership import ConfigMapOwnership
from shardherd.core.group import ownership
from shardherd.core.group.records import Ownership, PositionCopies
from shardherd.core.model.errors import ShardherdError
from shardherd.core.model.naming import is_group_name
from shardherd.core.model.nouns import GroupIdentity, GroupView
from shardherd.core.model.times import seconds_since_1970
from shardherd.core.planning.listing import identity_of
from shardherd.core.planning.status import SELECTOR_LABEL
from shardherd.inspect.checks import NONE, Examined, Right, selectors_of
from shardherd.inspect.coordinator import Coordinator
from shardherd.inspect.observed import ConflictError, Happened, InspectError, Json, Observed
from shardherd.local.schema import schema
from shardherd.ports import OwnershipUnavailableError

BASE = "/apis/shardherd.dev/v1alpha1"
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/consumergroups.shardherd.dev"

OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

RIGHTS = (
    ("list", "shardherd.dev", "consumergroups", "to look at groups", True),
    ("list", "", "pods", "to look at consumers", True),
    ("get", "", "configmaps", "to look at shards and positions", True),
    ("list", "", "events", "to see what happened", False),
    ("get", "shardherd.dev", "consumergroups/checkpoints", "to ask the coordinator (--api)", False),
    ("patch", "shardherd.dev", "consumergroups", "to pause, resume and reset", False),
    ("patch", "", "pods", "to drain a consumer", False),
)
"""What the commands need: verb, API group, resource, for what, and whether looking needs it."""


class Cluster:
    """The groups of one namespace of a cluster, None: of all."""

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str | None,
        coordinator: Coordinator | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Raises InspectError for a namespace that cannot be."""
        self.api = api
        self._namespace = None if namespace is None else namespace_called(namespace)
        self._coordinator = coordinator
        self._now = now

    @property
    def namespace(self) -> str:
        """Where a group is that is named. Raises InspectError if that is not said."""
        if self._namespace is None:
            raise InspectError("a group is named, and -A means all namespaces: name its namespace by -n", 2)
        return self._namespace

    def groups(self) -> list[Json]:
        """Every group."""
        where = f"/namespaces/{self._namespace}" if self._namespace is not None else ""
        found: list[Json] = self._asked(f"{BASE}{where}/consumergroups", "consumergroups")["items"]
        return found

    def group(self, name: str) -> Observed:
        """All that may be read of one group."""
        resource = self.resource(name)
        unseen: list[str] = []
        stored, copies = self._stored(identity_of(resource), unseen)
        pods = self._optional(f"/api/v1/namespaces/{self.namespace}/pods", f"{SELECTOR_LABEL}={name}", "pods", unseen)
        events = self._events(identity_of(resource), unseen)
        view = self._view(identity_of(resource), unseen)
        return Observed(resource, self._now(), stored, copies, view, tuple(pods), events, tuple(unseen))

    def resource(self, name: str) -> Json:
        """The group's resource."""
        try:
            found: Json = self._asked(self._path(name), "consumergroups", missing=False)
        except _MissingError:
            there = ", ".join(each["metadata"]["name"] for each in self.groups()) or "none"
            raise InspectError(
                f"there is no ConsumerGroup {name!r} in namespace {self.namespace!r}, where there are: {there}; name another"
                " namespace by -n",
                4,
            ) from None
        return found

    def change(self, name: str, patch: Mapping[str, Any]) -> Json:
        """Patch the group's resource; returns it."""
        found: Json = self._write(self._path(name), patch, "patch consumergroups")
        return found

    def change_pod(self, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        """Patch a pod of a group."""
        self._write(f"/api/v1/namespaces/{namespace}/pods/{name}", patch, "patch pods")

    def examined(self, operators: str, release: str) -> Examined:
        """What `doctor` judges; everything that cannot be read is None. Raises InspectError."""
        namespace_called(operators)
        refused: dict[str, str] = {}

        def read(what: str, path: str, **options: Any) -> Any:
            try:
                return self.api.call(options.pop("method", "GET"), path, **options)
            except ApiError as error:
                refused[what] = NONE if error.status == 404 else str(error)
            except ApiUnavailableError as error:
                refused[what] = str(error)
            return None

        server = read("server", "/version")
        if server is None:
            return Examined(self.namespace, operators, version("shardherd"), refused=refused)
        served = read("served", BASE)
        definition = read("definition", DEFINITION)
        lease = read("lease", f"/apis/coordination.k8s.io/v1/namespaces/{operators}/leases/{release}")
        selector = "app.kubernetes.io/name=shardherd,app.kubernetes.io/component=operator"
        pods = read("pods", f"/api/v1/namespaces/{operators}/pods", query={"labelSelector": selector})
        chosen = selectors_of((pods or {}).get("items", ()))
        namespace = read("labels", f"/api/v1/namespaces/{self.namespace}") if chosen else None
        groups = read("groups", f"{BASE}/namespaces/{self.namespace}/consumergroups")
        asked = self._now()
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        myself = read("clock", "/apis/authentication.k8s.io/v1/selfsubjectreviews", method="POST", body=review)
        between = (asked + self._now()) / 2  # somewhere between the two it was answered
        stamp = (myself or {}).get("metadata", {}).get("creationTimestamp")
        renewed = ((lease or {}).get("spec") or {}).get("renewTime")
        return Examined(
            namespace=self.namespace,
            operators=operators,
            version=version("shardherd"),
            server=f"Kubernetes {server['gitVersion']}",
            served=None if served is None else ("v1alpha1",),
            definition=_schema_of(definition),
            schema=schema(),
            rights=tuple(self._right(*each) for each in RIGHTS),
            clock=between - seconds_since_1970(stamp) if stamp else None,
            lease=lease,
            lease_age=self._now() - seconds_since_1970(renewed) if renewed else None,
            pods=None if pods is None else tuple(pods["items"]),
            labels=None if namespace is None else namespace["metadata"].get("labels", {}),
            coordinator=self._health(operators, release, refused),
            groups=None if groups is None else tuple(groups["items"]),
            refused=refused,
        )

    def _health(self, operators: str, release: str, refused: dict[str, str]) -> str | None:
        """What the coordinator says of itself: asked directly, else through the API server."""
        try:
            if self._coordinator is not None:
                return self._coordinator.health()
            # Without TLS there is the second port alone; for a port that it has not a Service answers as if nobody were there.
            said = ""
            for port in (f"https:{release}:8443", f"http:{release}:8080"):
                path = f"/api/v1/namespaces/{operators}/services/{port}/proxy/readyz"
                try:
                    return str(self.api.call("GET", path, decode=False).decode().strip())
                except ApiError as error:
                    if error.status != 503:
                        raise
                    said = said or str(error)
            return said
        except (ApiError, ApiUnavailableError, InspectError) as error:
            refused["coordinator"] = str(error)
            return None

    def _right(self, verb: str, group: str, resource: str, use: str, needed: bool) -> Right:
        name, _, subresource = resource.partition("/")
        attributes = {"namespace": self.namespace, "verb": verb, "group": group, "resource": name, "subresource": subresource}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
        }
        allowed = None
        with suppress(ApiError, ApiUnavailableError):
            answer = self.api.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
            allowed = bool(answer["status"]["allowed"])
        return Right(verb, resource, use, allowed, needed)

    def _stored(self, identity: GroupIdentity, unseen: list[str]) -> tuple[Ownership | None, PositionCopies]:
        """Who holds what and the copies of positions, as the coordinator stores them."""
        store = ConfigMapOwnership(self.api)
        stored: Ownership | None = None
        copies = PositionCopies()
        try:
            found = asyncio.run(store.load(identity))
            if found is not None and not found.damage:
                stored = ownership.loads(found.data)
            elif found is not None:
                unseen.append(found.damage)
            copies = asyncio.run(store.load_copies(identity)).copies
        except (OwnershipUnavailableError, ShardherdError) as error:
            unseen.append(f"who holds which shard: {error}")
        return stored, copies

    def _view(self, identity: GroupIdentity, unseen: list[str]) -> GroupView | None:
        """The coordinator's view, if it is to be asked and answers; the rest is worth looking at without it."""
        if self._coordinator is None:
            return None
        try:
            return self._coordinator.view(identity)
        except InspectError as error:
            unseen.append(f"ends and lags of shards: {error}")
            return None

    def _events(self, identity: GroupIdentity, unseen: list[str]) -> tuple[Happened, ...]:
        path = f"/api/v1/namespaces/{identity.namespace}/events"
        found = self._optional(path, "", "events", unseen, fields=f"involvedObject.uid={identity.uid}")
        events = [
            Happened(
                str(each.get("lastTimestamp") or each.get("eventTime") or ""),
                str(each.get("reason", "")),
                str(each.get("message", "")),
                int(each.get("count") or 1),
            )
            for each in found
        ]
        return tuple(sorted(events, key=lambda event: event.last))

    def _optional(self, path: str, labels: str, what: str, unseen: list[str], fields: str = "") -> list[Json]:
        query = {name: value for name, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}
        try:
            found: list[Json] = self.api.call("GET", path, query=query)["items"]
        except (ApiError, ApiUnavailableError) as error:
            unseen.append(f"{what}: {error}")
            return []
        return found

    def _path(self, name: str) -> str:
        if not is_group_name(name):
            raise InspectError(f"{name!r} is no name of a ConsumerGroup: lower-case letters, digits and '-'", 2)
        return f"{BASE}/namespaces/{self.namespace}/consumergroups/{name}"

    def _asked(self, path: str, what: str, *, missing: bool = True) -> Any:
        try:
            return self.api.call("GET", path)
        except ApiError as error:
            if error.status == 404 and not missing:
                raise _MissingError from error
            raise _refusal(error, f"get {what}", self._namespace) from error
        except ApiUnavailableError as error:
            raise _away(error) from error

    def _write(self, path: str, patch: Mapping[str, Any], what: str) -> Any:
        try:
            return self.api.call("PATCH", path, patch, content_type=MERGE_PATCH)
        except ApiError as error:
            raise _refusal(error, what, self._namespace) from error
        except ApiUnavailableError as error:
            raise _away(error) from error


class _MissingError(Exception):
    """There is no such object."""


def namespace_called(name: str) -> str:
    """This name, if a namespace can have it. Raises InspectError."""
    if not is_group_name(name):
        raise InspectError(f"{name!r} is no name of a namespace: lower-case letters, digits and '-'", 2)
    return name


def connect(kubeconfig: Path | None, context: str | None, *, local: bool = False) -> tuple[KubernetesApi, str]:
    """The API server of a kubeconfig's context, by default the current one, and that context's namespace.

    Raises InspectError. In a pod without a kubeconfig it is the pod's own account. `local`: whoever asks could have this
    machine's groups instead.
    """
    loader: Any = config  # the client has no types
    file = None if kubeconfig is None else str(kubeconfig)
    configuration = Configuration()
    try:
        loader.load_kube_config(config_file=file, context=context, client_configuration=configuration)
        contexts, active = loader.list_kube_config_contexts(config_file=file)
        chosen = next((each for each in contexts if each["name"] == context), active)
        namespace = chosen["context"].get("namespace") or "default"
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise InspectError(f"the kubeconfig is no YAML: {problem}; name another by --kubeconfig or KUBECONFIG") from error
    except OSError as error:
        raise InspectError(
            f"the kubeconfig {error.filename} cannot be read ({error.strerror}): name another by --kubeconfig or KUBECONFIG"
        ) from error
    except (UnicodeDecodeError, TypeError, AttributeError) as error:  # its client looks into whatever is there
        raise InspectError(f"the kubeconfig is none ({error}): name another by --kubeconfig or KUBECONFIG") from error
    except config.ConfigException as error:
        if kubeconfig is None and context is None:
            with suppress(config.ConfigException):
                loader.load_incluster_config(client_configuration=configuration)
                return KubernetesApi(configuration), _own_namespace()
        missing = kubeconfig is not None and not kubeconfig.exists()
        why = f"there is no kubeconfig {kubeconfig}" if missing else str(error).rstrip(".")
        raise InspectError(
            f"no cluster: {why}; name a kubeconfig by --kubeconfig or KUBECONFIG, and its context by --context"
            + (", or look at this machine's groups by --local" if local else "")
        ) from error
    return KubernetesApi(configuration), namespace


def _own_namespace() -> str:
    """That of the pod's account, as kubectl takes it."""
    try:
        return OWN_NAMESPACE.read_text().strip()
    except OSError:
        return "default"


def _refusal(error: ApiError, what: str, namespace: str | None) -> InspectError:
    where = "all namespaces" if namespace is None else f"namespace {namespace!r}"
    if error.status == 404 and what.startswith("get"):
        return InspectError(
            f"the cluster knows no ConsumerGroups ({error}): install the chart, or name another cluster by --context"
        )
    if error.status in (401, 403):
        role = "edit" if what.startswith("patch") else "view"
        return InspectError(f"you may not {what} in {where} ({error}): ask for the role `{role}` there, or name another by -n")
    if error.status == 409:
        return ConflictError(
            f"somebody else changed it at the same time ({error}): look again, and repeat it if it is still right"
        )
    return InspectError(str(error))


def _away(error: ApiUnavailableError) -> InspectError:
    return InspectError(f"no cluster: {error}; check --context and --kubeconfig, and the way to the API server")


def _schema_of(definition: Any) -> Mapping[str, Any] | None:
    versions = (definition or {}).get("spec", {}).get("versions", ())
    found: Mapping[str, Any] | None = next(
        (each["schema"]["openAPIV3Schema"] for each in versions if each["name"] == "v1alpha1"), None
    )
    return found
