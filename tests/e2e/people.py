"""Somebody with a kubeconfig of his own on the real cluster, and what the command line and the page tell him.

His commands are those that the documentation names: `kubectl shardherd`, as a process of its own. Used where a test is about
who may look, or about what is told of a fault. Asserts nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from dev.cluster import certificates
from dev.cluster.paths import cache
from dev.demo.kube import Json, Kube
from dev.demo.lab import RELEASE, SYSTEM, Lab
from dev.demo.report import DemoError, await_that
from shardherd.adapters.kubernetes.api import ApiError, KubernetesApi
from shardherd.core.planning.explaining import Why
from shardherd.inspect.cluster import connect
from tests.e2e.groups import Deployed
from tests.harness.ctrl_c import CTRL_C_ENDS

PAGE = f"/api/v1/namespaces/{SYSTEM}/services/http:{RELEASE}-page:8082/proxy/document.json"
"""The one path that the chart's Role for the page is about."""


@dataclass(frozen=True)
class Page:
    """The page as one command serves it on this machine."""

    url: str

    def read(self, path: str) -> str:
        """What is there."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=20) as answer:
            return str(answer.read().decode())

    def document(self) -> Json:
        """All groups in a row each."""
        found: Json = json.loads(self.read("document.json"))
        return found

    def group(self, group: Deployed) -> Json:
        """One group in full."""
        found: Json = json.loads(self.read(f"document.json?group={quote(group.namespace)}/{quote(group.name)}"))["group"]
        return found

    def diagnosis(self, group: Deployed) -> list[str]:
        """What the page says of why it is so, in the lines that the command line has for it."""
        return [line for why in self.group(group)["diagnosis"] for line in (why["question"], *Why(**why).lines())]


@dataclass(frozen=True)
class Person:
    """A user of this name, by the certificate in his kubeconfig."""

    lab: Lab
    name: str
    kubeconfig: Path

    @cached_property
    def kube(self) -> Kube:
        """His kubectl, which finds its plug-in beside the Python that runs this."""
        cluster = self.lab.cluster
        folders = (str(Path(sys.executable).parent), str(cluster.tools.kubectl.parent), os.environ["PATH"])
        mine = {
            "KUBECONFIG": str(self.kubeconfig),
            "PATH": os.pathsep.join(folders),
            # As on any machine: who forbids Python to keep what it has compiled waits for each command twice as long.
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(cache() / "bytecode"),
        }
        return Kube(cluster.tools.kubectl, {**cluster.environment(), **mine})

    @cached_property
    def api(self) -> KubernetesApi:
        """The API server with his rights."""
        return connect(self.kubeconfig, None)[0]

    def refused(self, method: str, path: str) -> str:
        """How the API server refuses a call for want of a right; empty if he has it, whatever comes of the call."""
        try:
            self.api.call(method, path, decode=False)
        except ApiError as error:
            return str(error) if error.status == 403 else ""
        return ""

    def may_view(self, namespace: str) -> None:
        """Let him look at a namespace, as an administrator would: by the role that every cluster has."""
        self._bind("view", namespace, "--clusterrole=view")
        self._await_right(f"/apis/shardherd.dev/v1alpha1/namespaces/{namespace}/consumergroups")

    def may_see_the_page(self) -> None:
        """As docs/page.md has it."""
        self._bind("page", SYSTEM, f"--role={RELEASE}-page")
        self._await_right(PAGE)

    def _bind(self, what: str, namespace: str, role: str) -> None:
        self.lab.kube.run("-n", namespace, "create", "rolebinding", f"{what}-{self.name}", role, f"--user={self.name}")

    def _await_right(self, path: str) -> None:
        await_that(f"{self.name} may get {path}", lambda: not self.refused("GET", path), within=30, every=0.1)

    def explain(self, group: Deployed, *about: str) -> list[str]:
        """What `kubectl shardherd explain` says, in lines."""
        return self.kube.run("shardherd", "explain", group.name, *about, "-n", group.namespace).splitlines()

    def status(self, group: Deployed) -> list[str]:
        """What `kubectl shardherd status` says of this group: the cells of its line, of which the last is the message."""
        lines = self.kube.run("shardherd", "status", "-n", group.namespace).splitlines()
        return next(cells for line in lines if (cells := line.split(maxsplit=6))[:1] == [f"{group.namespace}/{group.name}"])

    def is_told_the_same(self, page: Page, group: Deployed, reason: str) -> list[str]:
        """Wait until the command line gives this reason, and the page says nothing else than it does; its lines."""

        def told() -> list[str] | None:
            shown, said = page.diagnosis(group), self.explain(group)
            there = any(line.startswith(f"{reason}: ") for line in shown) and set(shown) <= set(said)
            return said if there else None

        found: list[str] = group.until(f"is told to be {reason} by command line and page", told, 60)
        return found

    @contextmanager
    def page(self, *options: str) -> Iterator[Page]:
        """`kubectl shardherd page` until the block ends, which is by Ctrl-C. Raises DemoError with what it says instead."""
        command = [*CTRL_C_ENDS, str(self.kube.kubectl), "shardherd", "page", *options]
        process = subprocess.Popen(
            command, env=dict(self.kube.environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            if said:
                yield Page(said.split()[0])
                process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=30)
            if not said or process.returncode != 0:
                raise DemoError(f"`kubectl shardherd page` ended with {process.returncode}: {error.strip()}")
        finally:
            process.kill()
            process.wait()


def person(lab: Lab, name: str) -> Person:
    """A user of this name, of this run alone, whom nobody has given any right yet."""
    name = f"{name}-{os.getpid()}"
    folder = lab.cluster.layout.certificates
    certificates.sign(folder, certificates.Identity(name, name))
    kubeconfig = lab.state / f"{name}.kubeconfig"
    kubeconfig.parent.mkdir(parents=True, exist_ok=True)
    kubeconfig.touch(mode=0o600)
    kubeconfig.write_text(certificates.kubeconfig(folder, name, lab.cluster.api_url, lab.name))
    return Person(lab, name, kubeconfig)


def administrator(lab: Lab) -> Person:
    """Whoever made the instance."""
    return Person(lab, "kubernetes-admin", lab.cluster.kubeconfig)
