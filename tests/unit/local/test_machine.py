"""What a manifest means on one machine: every field that is not kept is named."""

from __future__ import annotations

from typing import Any

import pytest

from shardherd.local.machine import settled
from shardherd.local.schema import admitted
from tests.unit.local.manifests import group

PYTHON = "/usr/bin/python3"


def warnings_for(**application: Any) -> list[str]:
    _, warnings = settled(admitted(group(application=application)), 4, PYTHON)
    return warnings


def driver(**application: Any) -> tuple[int, str, int]:
    """Tasks at a time, heap, and executors, as a machine with four CPUs runs it."""
    made, _ = settled(admitted(group(application=application)), 4, PYTHON)
    found = made["spec"]["application"]
    return found["driver"]["cores"], found["driver"]["memory"], found["executor"]["instances"]


def test_a_driver_without_executors_is_as_it_is_declared() -> None:
    assert driver(driver={"cores": 2, "memory": "640m"}, executor={"instances": 0}) == (2, "640m", 0)


def test_a_driver_runs_as_many_tasks_as_its_executors_would() -> None:
    assert driver(driver={"cores": 1, "memory": "640m"}, executor={"instances": 3, "cores": 1, "memory": "2g"}) == (3, "2g", 0)


def test_a_driver_runs_no_more_tasks_than_the_machine_has_cpus() -> None:
    assert driver(driver={"memory": "3g"}, executor={"instances": 3, "cores": 4, "memory": "2048m"}) == (4, "3g", 0)


def test_executors_as_needed_count_as_the_most_of_them() -> None:
    assert driver(executor={"dynamicAllocation": {"maxExecutors": 2}, "cores": 1}) == (2, "1g", 0)


def test_an_ordinary_group_is_told_of_its_image_and_its_executors() -> None:
    assert warnings_for() == [
        "spec.application.image: there are no images here; /app.py is run by /usr/bin/python3",
        "spec.application.executor: there are no executors here; each driver runs the tasks itself, as local[1] with a heap of"
        " 1g (at most 1 x 1 cores were asked for, this machine has 4)",
    ]


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (None, []),
        ("a pod", []),
        ({"containers": None}, []),
        ({"containers": ["driver"]}, []),
        ({"containers": [{"image": "proxy"}], "nodeSelector": {}}, ["spec.nodeSelector", "spec.containers[None]"]),
    ],
)
def test_of_a_template_that_is_none_of_a_pod_what_can_be_named_is(spec: object, named: list[str]) -> None:
    """What is wrong with it the condition of the group says, as on a cluster."""
    warnings = warnings_for(driver={"template": {"spec": spec}}, executor={"instances": 0})
    assert warnings[1:] == [f"spec.application.driver.template.{each}: not kept by a process of this machine" for each in named]


def test_every_field_that_is_not_kept_is_named() -> None:
    template = {
        "metadata": {"labels": {"team": "blue"}},
        "spec": {
            "nodeSelector": {"disk": "fast"},
            "tolerations": [],
            "volumes": [],
            "containers": [
                {"name": "driver", "resources": {"limits": {"memory": "1Gi"}}, "env": [], "securityContext": {}},
                {"name": "sidecar"},
            ],
        },
    }
    executor = {"instances": 0, "template": {"spec": {}}, "serviceAccountName": "other", "cpuLimit": 2}
    warnings = warnings_for(
        driver={"template": template, "cpuLimit": 2},
        executor=executor,
        serviceAccountName="mine",
        imagePullSecrets=[{"name": "registry"}],
        sparkConf={"spark.kubernetes.local.dirs.tmpfs": "true", "spark.executor.extraJavaOptions": "-X", "spark.ui.port": "1"},
    )
    assert [warning.partition(": ")[0] for warning in warnings] == [
        "spec.application.image",
        "spec.application.imagePullSecrets",
        "spec.application.serviceAccountName",
        "spec.application.sparkConf",
        "spec.application.driver.cpuLimit",
        "spec.application.executor.template",
        "spec.application.executor.serviceAccountName",
        "spec.application.executor.cpuLimit",
        "spec.application.driver.template.spec.nodeSelector",
        "spec.application.driver.template.spec.tolerations",
        "spec.application.driver.template.spec.containers[driver].resources",
        "spec.application.driver.template.spec.containers[driver].securityContext",
        "spec.application.driver.template.spec.containers[sidecar]",
    ]
    assert warnings[3].endswith(": spark.executor.extraJavaOptions, spark.kubernetes.local.dirs.tmpfs")
