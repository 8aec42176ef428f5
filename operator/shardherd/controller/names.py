"""Labels, annotations and other names that the controller puts on objects and finds them by. Decides nothing."""

from __future__ import annotations

from collections.abc import Mapping

from shardherd.core.planning.status import ROLE_LABEL, SELECTOR_LABEL

API_GROUP = "shardherd.dev"
API_VERSION = "v1alpha1"
KIND = "ConsumerGroup"
PLURAL = "consumergroups"

GROUP_LABEL = SELECTOR_LABEL
INCARNATION_LABEL = "shardherd.dev/incarnation"
DRIVER_ROLE = "driver"

CORDONED_LABEL = "shardherd.dev/cordoned"
"""Set to `true` by a user on a driver's pod: this consumer is to hold no shards, and stays."""

ZONE = "topology.kubernetes.io/zone"
"""Label of a pod: the zone of its node. Kubernetes sets it from 1.35 on; before, whoever places pods can."""

CAPACITY = "shardherd.dev/capacity"
"""Annotation of a driver's pod: how much work it can do relative to the others; a whole number."""

TEMPLATE_HASH = "shardherd.dev/template-hash"
"""Annotation of a driver's pod: which declaration it was made from."""

SERVED_BY = "shardherd.dev/served-by"
"""Annotation of a driver's pod: which operator it calls. Only of those of operators that choose namespaces by their labels."""

MANIFEST_HASH = "shardherd.dev/manifest-hash"
"""Annotation of our objects: which manifest was applied last."""

DECLARATION = "shardherd.dev/declaration"
FALLBACK = "shardherd.dev/fallback-declaration"
REJECTED = "shardherd.dev/rejected-declaration"
REJECTED_BECAUSE = "shardherd.dev/rejected-because"
"""Annotations of the StatefulSet: what it was made from, what its consumers ran before, the hash of what did not run, why."""

TRUST = "shardherd-ca"
"""ConfigMap in each namespace that has groups: the authorities by which consumers believe the coordinator."""

DRIVER_CONTAINER = "driver"
WORKER_CONTAINER = "worker"
CONSUMER_CONTAINERS = (DRIVER_CONTAINER, WORKER_CONTAINER)
"""What the container is called that is the consumer: a Spark driver, or a plain Python process. A pod has one of them."""
EXECUTOR_CONTAINER = "executor"


def group_labels(group: str) -> dict[str, str]:
    """Labels of everything that a group owns."""
    return {
        "app.kubernetes.io/name": "shardherd",
        "app.kubernetes.io/managed-by": "shardherd",
        "app.kubernetes.io/component": "consumer",
        GROUP_LABEL: group,
    }


def driver_selector(group: str) -> dict[str, str]:
    """Labels that select the drivers of a group and not their executors."""
    return {GROUP_LABEL: group, ROLE_LABEL: DRIVER_ROLE}


def group_of(labels: Mapping[str, str]) -> str | None:
    """The group that an object with these labels belongs to."""
    return labels.get(GROUP_LABEL)
