"""Runs the pods of this machine: what a StatefulSet's controller, a garbage collector and a kubelet do on a cluster.

Level-based: `sync` compares the objects with the processes and brings both together; `run` calls it whenever something changed
or is due. Statuses are as a kubelet reports them. A process outlives this one, and is found again by what its shim keeps.
It decides when a container starts, is asked to end, and is killed; never how many there should be or who holds what.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardherd.adapters.local import statuses
from shardherd.adapters.local.containers import Container, Ended, Launch, Running, log_tail
from shardherd.adapters.local.machine import Machine, NoPortError, free_port
from shardherd.adapters.local.objects import GROUP, GROUP_LABEL, POD, STATEFUL_SET, Edit, Json, Objects, ended_gracefully, only
from shardherd.adapters.local.probes import Probe
from shardherd.adapters.local.volumes import VolumeError, Volumes, environment, paths, with_temporary
from shardherd.core.model.times import seconds_since_1970
from shardherd.telemetry.logs import fields

log = logging.getLogger(__name__)

FOLDER = "local.shardherd.dev/folder"
"""Annotation of a ConsumerGroup: where its mainApplicationFile is looked for."""

ENTRYPOINT = "driver-entrypoint.sh"

SOON = 0.05
"""Seconds until something is looked at again that ends, or begins, by itself any moment."""


@dataclass
class _Pod:
    """What is remembered of one pod from one look to the next."""

    container: Container
    watched: int = 0
    asked_to_end: bool = False
    exits: int = 0
    counted: int = 0
    again_at: float = 0.0
    trouble: str = ""
    probe: Probe | None = None


@dataclass
class Node:
    """The pods of these objects on this machine. `changed` is called after each write; `token` makes a pod's token."""

    objects: Objects
    machine: Machine
    token: Callable[[Json], str]
    changed: Callable[[], None] = lambda: None
    forget: Callable[[str], None] = lambda _uid: None
    wall: Callable[[], float] = time.time
    closing: bool = False
    """Whether all pods are to end, and none is to start."""
    _pods: dict[str, _Pod] = field(default_factory=dict)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _due: float | None = None

    def wake(self) -> None:
        """Something changed."""
        self._woken.set()

    async def run(self) -> None:
        """Keep processes and objects together, for ever. Cancel to stop; the processes go on."""
        try:
            while True:
                self._woken.clear()
                self._due = None
                try:
                    await self.sync()
                except (sqlite3.Error, OSError) as error:
                    log.warning("the state folder cannot be used now, trying on: %s", error)
                    self._at(self.wall() + 1.0)
                wait = None if self._due is None else max(SOON, self._due - self.wall())
                try:
                    async with asyncio.timeout(wait):
                        await self._woken.wait()
                except TimeoutError:
                    continue
        finally:
            for known in self._pods.values():
                self._stop_probe(known)

    async def sync(self) -> None:
        """One look at everything."""
        self._collect_garbage(self.objects.all())
        for stateful_set in self.objects.all(STATEFUL_SET):
            self._keep_ordinals(stateful_set)
        pods = self.objects.all(POD)
        for pod in pods:
            await self._keep(pod)
        present = {pod["metadata"]["uid"] for pod in pods}
        for uid in [uid for uid in self._pods if uid not in present]:
            self._stop_probe(self._pods.pop(uid))

    def logs(self, pods: list[Json]) -> Mapping[str, str]:
        """The last lines of drivers before their last crash, by pod UID, of those that are not ready again."""
        found = {}
        for pod in pods:
            status: Json = next(iter(pod.get("status", {}).get("containerStatuses", ())), {})
            ended = status.get("lastState", {}).get("terminated") or status.get("state", {}).get("terminated")
            if ended is not None and ended["exitCode"] != 0 and not status["ready"]:
                crashed = status["restartCount"] if "running" in status["state"] else status["restartCount"] + 1
                found[pod["metadata"]["uid"]] = log_tail(self.machine.log_of(pod, crashed))
        return found

    @property
    def empty(self) -> bool:
        """Whether no pod is left."""
        return not self.objects.all(POD)

    def kill_all(self) -> None:
        """End every process now, without a drain."""
        for known in self._pods.values():
            known.container.kill()

    # --- what a StatefulSet's controller and a garbage collector do ---------------------------------------------------------

    def _collect_garbage(self, objects: Iterable[Json]) -> None:
        """What belongs to something that is gone goes, too; pods gracefully."""
        known = list(objects)
        uids = {each["metadata"]["uid"] for each in known}
        for each in known:
            owners = each["metadata"].get("ownerReferences", ())
            if not owners or any(owner["uid"] in uids for owner in owners):
                continue
            metadata = each["metadata"]
            if each["kind"] == POD:
                self._end(each)
            else:
                self._change(each["kind"], metadata["namespace"], metadata["name"], lambda _: None)
                if each["kind"] == STATEFUL_SET:
                    self.forget(owners[0]["uid"])

    def _keep_ordinals(self, stateful_set: Json) -> None:
        metadata, spec = stateful_set["metadata"], stateful_set["spec"]
        wanted = 0 if self.closing else int(spec.get("replicas", 1))
        there = {
            pod["metadata"]["name"]: pod
            for pod in self.objects.all(POD)
            if any(owner["uid"] == metadata["uid"] for owner in pod["metadata"].get("ownerReferences", ()))
        }
        for name, pod in there.items():
            if int(name.rpartition("-")[2]) >= wanted:
                self._end(pod)
        for ordinal in range(wanted):
            name = f"{metadata['name']}-{ordinal}"
            if name not in there:
                self._make(stateful_set, name)

    def _make(self, stateful_set: Json, name: str) -> None:
        namespace, now = stateful_set["metadata"]["namespace"], self.wall()
        self._change(POD, namespace, name, lambda known: known or statuses.made(stateful_set, name, now))

    def _end(self, pod: Json) -> None:
        """Ask for the deletion of this very pod."""
        now = self.wall()
        if "deletionTimestamp" not in pod["metadata"]:
            self._change_pod(pod, lambda known: ended_gracefully(known, now))

    # --- what a kubelet does -------------------------------------------------------------------------------------------------

    async def _keep(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        known = self._pods.setdefault(uid, _Pod(self.machine.container(uid)))
        container, deleting = known.container, "deletionTimestamp" in pod["metadata"]
        running = container.running()
        if running is not None:
            self._keep_running(pod, known, running)
            return
        self._stop_probe(known)
        if container.locked():
            self._at(self.wall() + SOON)  # it begins, or has just ended
            return
        ended = container.last_end()
        if ended is None and container.starts() > 0:
            self._at(self.wall() + SOON)  # its shim was killed, and what it left is being ended
            return
        if deleting:
            self._bury(pod, known, ended)
        elif ended is not None and self._waits(known, ended):
            self._write_status(pod, statuses.down(pod, ended, self.machine.backoff.after(known.exits)))
        else:
            await self._start(pod, known, ended)

    def _keep_running(self, pod: Json, known: _Pod, running: Running) -> None:
        container, now = known.container, self.wall()
        if known.watched != running.number:
            if not container.watch(asyncio.get_running_loop(), self.wake):
                self._at(now + SOON)
                return
            known.watched = running.number
        if "deletionTimestamp" in pod["metadata"]:
            self._stop_probe(known)
            if not known.asked_to_end:
                log.info("asking %s to end", pod["metadata"]["name"], extra=fields(group=_group(pod)))
                container.terminate()
                known.asked_to_end = True
            deadline = seconds_since_1970(pod["metadata"]["deletionTimestamp"])
            if now >= deadline:
                log.warning("%s did not end within its grace period: killing it", pod["metadata"]["name"])
                container.kill()
                deadline = now + 1.0
            self._at(deadline)
        elif known.probe is None:
            known.probe = Probe(statuses.driver(pod["spec"]).get("readinessProbe"), container.run / "port", self.wake)
            known.probe.start()
        self._write_status(
            pod, statuses.up(pod, running, container.last_end(), now, ready=known.probe is not None and known.probe.ready)
        )

    def _waits(self, known: _Pod, ended: Ended) -> bool:
        """Whether the back-off of a container that ended is not over yet. Counts each end once."""
        backoff = self.machine.backoff
        if known.counted != ended.number:
            known.counted = ended.number
            known.exits = 1 if ended.ended - ended.began >= backoff.forgotten else known.exits + 1
            known.again_at = ended.ended + backoff.after(known.exits)
        if self.wall() >= known.again_at:
            return False
        self._at(known.again_at)
        return True

    def _bury(self, pod: Json, known: _Pod, ended: Ended | None) -> None:
        """The pod's process has ended, or never was: show how, then remove the pod."""
        if ended is not None and self._write_status(pod, statuses.gone(pod, ended)):
            self._at(self.wall() + SOON)
            return
        # Its object last: whoever comes after a crash in between finds by it what is left to do.
        known.container.remove()
        self.machine.temporary(pod["metadata"]["uid"]).unlink(missing_ok=True)
        self._drop_claims(pod)
        self._change_pod(pod, lambda _: None)
        log.info("pod %s is gone", pod["metadata"]["name"], extra=fields(group=_group(pod)))

    def _drop_claims(self, pod: Json) -> None:
        """Remove what a claim template gave to a pod that its StatefulSet has no place for any more."""
        metadata = pod["metadata"]
        name, namespace = metadata["name"], metadata["namespace"]
        stateful_set = self.objects.get((STATEFUL_SET, namespace, name.rpartition("-")[0]))
        if stateful_set is not None and int(name.rpartition("-")[2]) < int(stateful_set["spec"].get("replicas", 1)):
            return
        defined = {volume["name"] for volume in pod["spec"].get("volumes", ())}
        for mount in statuses.driver(pod["spec"]).get("volumeMounts", ()):
            if mount["name"] not in defined:
                shutil.rmtree(self.machine.claims(namespace) / f"{mount['name']}-{name}", ignore_errors=True)

    async def _start(self, pod: Json, known: _Pod, ended: Ended | None) -> None:
        container = known.container
        try:
            launch, port = self._launch(pod, container)
        except (VolumeError, NoPortError) as error:
            if known.trouble != str(error):
                log.error("pod %s cannot start: %s", pod["metadata"]["name"], error)  # noqa: TRY400
            known.trouble = str(error)
            self._write_status(pod, statuses.misconfigured(pod, str(error), ended, self.wall()))
            self._at(self.wall() + self.machine.backoff.first)
            return
        (container.run / "port").write_text(str(port))
        await container.start(launch)
        log.info("started %s, the %d. time", pod["metadata"]["name"], container.starts(), extra=fields(group=_group(pod)))
        self.wake()

    def _launch(self, pod: Json, container: Container) -> tuple[Launch, int]:
        """What to start for this pod, and the port of its probe. Raises VolumeError."""
        metadata, spec = pod["metadata"], pod["spec"]
        namespace = metadata["namespace"]

        def find(kind: str, name: str) -> Json | None:
            return self.objects.get((kind, namespace, name))

        container.run.mkdir(parents=True, exist_ok=True)
        volumes = Volumes(container.folder, self.machine.claims(namespace), find, lambda: self.token(pod))
        try:
            folders = volumes.provide(spec, metadata["name"])
        except OSError as error:
            # It keeps no other pod back.
            raise VolumeError(f"its volumes cannot be made: {error}") from error
        leads = paths(spec, folders)
        port = free_port()
        found = environment(pod, find, {"SHARDHERD_METRICS_PORT": str(port)})
        driver = statuses.driver(spec)
        given = {name: leads.of(value) for name, value in found.items()}
        variables = dict(self.machine.inherited)
        if "tmp" in folders:
            variables.pop("TMPDIR", None)
            given = with_temporary({**variables, **given}, _called(self.machine.temporary(metadata["uid"]), folders["tmp"]))
        if statuses.module(driver):
            # In place of the image's own: a module is found in the folder of the application.
            given["PYTHONPATH"] = os.pathsep.join(filter(None, (str(self._folder(pod)), given.get("PYTHONPATH", ""))))
        cwd = Path(leads.of(driver.get("workingDir", str(container.folder))))
        command = self._command(pod, driver, leads.of)
        log_file = self.machine.log_of(pod, container.starts() + 1)
        return Launch(command, {**variables, **given}, cwd, log_file), port

    def _command(self, pod: Json, driver: Mapping[str, Any], leads: Callable[[str], str]) -> list[str]:
        command = [*driver.get("command", ()), *driver.get("args", ())]
        if command[:2] == ["tini", "--"]:
            command = command[2:]
        if not command or not command[0].endswith(ENTRYPOINT):
            return [leads(each) for each in command]
        if command[1:2] == ["-m"]:
            return [self.machine.python, *command[1:]]
        main, *arguments = command[1:]
        return [self.machine.python, str(self._file(pod, main)), *(leads(each) for each in arguments)]

    def _file(self, pod: Json, path: str) -> Path:
        """The application's file: there as it is named, or the longest end of that path below the group's folder."""
        if Path(path).exists():
            return Path(path)
        folder = self._folder(pod)
        parts = Path(path).parts[1:]
        for begin in range(len(parts)):
            candidate = folder.joinpath(*parts[begin:])
            if candidate.exists():
                return candidate
        raise VolumeError(
            f"spec.application.mainApplicationFile {path} is neither there nor, by its end, below {folder}: name the folder by"
            " --app-dir"
        )

    def _folder(self, pod: Json) -> Path:
        """Where the group's application is looked for."""
        namespace, name = _group(pod).split("/")
        group = self.objects.get((GROUP, namespace, name))
        return Path((group or {"metadata": {}})["metadata"].get("annotations", {}).get(FOLDER, "."))

    # --- inside --------------------------------------------------------------------------------------------------------------

    def _write_status(self, pod: Json, status: Json) -> bool:
        """Write the pod's status if it differs; whether it did."""
        if pod.get("status") == status:
            return False
        self._change_pod(pod, lambda known: known | {"status": status})
        return True

    def _change_pod(self, pod: Json, edit: Callable[[Json], Json | None]) -> None:
        metadata = pod["metadata"]
        self._change(POD, metadata["namespace"], metadata["name"], only(metadata["uid"], edit))

    def _change(self, kind: str, namespace: str, name: str, edit: Edit) -> None:
        self.objects.change((kind, namespace, name), edit)
        self.changed()

    def _at(self, due: float) -> None:
        """Look again by then (seconds since 1970)."""
        self._due = due if self._due is None else min(self._due, due)

    def _stop_probe(self, known: _Pod) -> None:
        if known.probe is not None:
            known.probe.stop()
            known.probe = None


def _called(link: Path, folder: Path) -> Path:
    """The folder by the name of this link. Raises VolumeError."""
    try:
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(folder)
    except OSError as error:
        raise VolumeError(f"its volumes cannot be made: {error}") from error
    return link


def _group(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata'].get('labels', {}).get(GROUP_LABEL, '')}"
