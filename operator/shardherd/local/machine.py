"""A manifest applied to one machine: which of its fields have no effect, and where the executors' work is done instead.

Called when a group is applied. Everything that is not kept is named, with what happens in its place. Pure.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from shardherd.controller.declared import ACCOUNTS, account, executors, is_python

Json = dict[str, Any]

_POD = frozenset({"containers", "volumes", "terminationGracePeriodSeconds"})
_CONTAINER = frozenset({"name", "env", "volumeMounts", "command", "args", "workingDir", "readinessProbe"})
_CONF = ("spark.kubernetes.", "spark.executor.", "spark.dynamicAllocation.")
"""How the settings of Spark begin that say something of executors only."""


def settled(resource: Mapping[str, Any], cpus: int, python: str) -> tuple[Json, list[str]]:
    """The admitted resource as this machine with so many CPUs runs it, and a warning for each field that is not kept."""
    made: Json = copy.deepcopy(dict(resource))
    application = made["spec"]["application"]
    if is_python(application):
        # Who sits in front of the machine reads it himself.
        application["worker"] = {"logFormat": "text", **application.get("worker", {})}
    warnings = list(_not_kept(application, python))
    most = executors(application)
    if most:
        warnings.append(_work_in_the_driver(application, most, cpus))
    return made, warnings


def _work_in_the_driver(application: Json, most: int, cpus: int) -> str:
    """The one place that decides what stands for executors: the driver runs as many tasks at a time as they would."""
    driver, executor = application["driver"], application["executor"]
    tasks = max(1, min(most * int(executor["cores"]), cpus))
    memory = max(driver["memory"], executor["memory"], key=_mebibytes)
    application["driver"] = {**driver, "cores": tasks, "memory": memory}
    application["executor"] = {"instances": 0, "cores": 1, "memory": executor["memory"]}
    return (
        f"spec.application.executor: there are no executors here; each driver runs the tasks itself, as local[{tasks}] with a"
        f" heap of {memory} (at most {most} x {executor['cores']} cores were asked for, this machine has {cpus})"
    )


def _mebibytes(memory: str) -> int:
    return int(memory[:-1]) * (1024 if memory[-1] in "gG" else 1)


def _not_kept(application: Mapping[str, Any], python: str) -> Iterator[str]:
    where = "spec.application"
    yield f"{where}.image: there are no images here; {_program(application)} is run by {python}"
    for name in ("imagePullSecrets",):
        if name in application:
            yield f"{where}.{name}: not used, there are no images here"
    if account(application) not in ACCOUNTS.values():
        yield f"{where}.serviceAccountName: processes here have your own rights, not those of an account"
    conf = sorted(key for key in application.get("sparkConf", {}) if key.startswith(_CONF))
    if conf:
        yield f"{where}.sparkConf: not used, as there are no executors here: {', '.join(conf)}"
    if is_python(application):
        worker = application.get("worker", {})
        for name in ("cpu", "memory"):
            if name in worker:
                yield f"{where}.worker.{name}: not kept by a process of this machine"
        for field in _of_template(worker.get("template", {}), "worker"):
            yield f"{where}.worker.template.{field}: not kept by a process of this machine"
        return
    if "cpuLimit" in application["driver"]:
        yield f"{where}.driver.cpuLimit: not kept by a process of this machine"
    for name in ("template", "serviceAccountName", "cpuLimit"):
        if name in application["executor"]:
            yield f"{where}.executor.{name}: not used, as there are no executors here"
    for field in _of_template(application["driver"].get("template", {}), "driver"):
        yield f"{where}.driver.template.{field}: not kept by a process of this machine"


def _program(application: Mapping[str, Any]) -> str:
    return str(application["processor"] if "processor" in application else application["mainApplicationFile"])


def _of_template(template: Mapping[str, Any], ours: str) -> Iterator[str]:
    """The fields of a pod's template that a plain process cannot have."""
    spec = template.get("spec")
    if not isinstance(spec, dict):
        return
    yield from (f"spec.{name}" for name in spec if name not in _POD)
    containers = spec.get("containers")
    for container in containers if isinstance(containers, list) else ():
        if not isinstance(container, dict):
            continue
        if container.get("name") != ours:
            yield f"spec.containers[{container.get('name')}]"
            continue
        yield from (f"spec.containers[{ours}].{name}" for name in container if name not in _CONTAINER)
