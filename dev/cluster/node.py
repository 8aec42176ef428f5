"""Decides how the processes of an instance live: this is the first process (pid 1) of its namespaces. Started by `instance`.

The instance has network, mount, pid and host-name namespaces of its own. Its first process starts and stops the others on
request, over a unix socket, one JSON line each way, and reaps whatever they leave. When it is killed the kernel ends every
process below it, unmounts what they mounted and removes the network: nothing of that has to be tidied up by name.

It must stay small and must not fail: it knows no Kubernetes.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dev.cluster.processes import ProcessRecord

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000


@dataclass
class Daemons:
    """The started processes by name: pid while it runs, exit code after."""

    running: dict[str, int] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)

    def start(self, name: str, argv: list[str], env: dict[str, str], log: str) -> None:
        """Start a process unless one of that name runs. Its output is appended to the file `log`."""
        if name in self.running:
            return
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            pid = os.posix_spawn(
                argv[0],
                argv,
                {**os.environ, **env},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, output, 1),
                    (os.POSIX_SPAWN_DUP2, output, 2),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGCHLD, signal.SIGPIPE],
            )
        finally:
            os.close(output)
        self.running[name] = pid
        self.ended.pop(name, None)

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a running process; KeyError if it does not run."""
        os.kill(self.running[name], number)

    def stop(self, name: str, timeout: float) -> None:
        """End a process: SIGTERM, and SIGKILL after `timeout` seconds. Returns when it is gone."""
        self.reap()
        if name not in self.running:
            return
        self.signal(name, signal.SIGCONT)
        self.signal(name, signal.SIGTERM)
        deadline = time.monotonic() + timeout
        while name in self.running:
            signal.sigtimedwait([signal.SIGCHLD], max(0.0, min(0.2, deadline - time.monotonic())))
            self.reap()
            if time.monotonic() > deadline and name in self.running:
                self.signal(name, signal.SIGKILL)

    def reap(self) -> None:
        """Take the exit codes of all that ended, also of orphans that became ours."""
        names = {pid: name for name, pid in self.running.items()}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if name := names.get(pid):
                del self.running[name]
                self.ended[name] = os.waitstatus_to_exitcode(status)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what one request asks. Raises what goes wrong."""
        self.reap()
        match request["do"]:
            case "start":
                self.start(request["name"], request["argv"], request["env"], request["log"])
            case "stop":
                self.stop(request["name"], request["timeout"])
            case "signal":
                self.signal(request["name"], request["number"])
            case "list":
                pass
            case other:
                raise ValueError(f"unknown request {other!r}")
        return {"running": self.running, "ended": self.ended}


def serve(listener: socket.socket) -> None:
    """Answer requests for ever. One connection carries one request."""
    daemons = Daemons()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        ready, _, _ = select.select([listener], [], [], 1.0)
        daemons.reap()
        if not ready:
            continue
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(5.0)
            try:
                reply = daemons.answer(json.loads(connection.makefile("rb").readline()))
            except (OSError, KeyError, ValueError) as error:
                reply = {"error": f"{type(error).__name__}: {error}"}
            try:
                connection.sendall(json.dumps(reply).encode() + b"\n")
            except OSError as error:
                print(f"a caller went away before its answer: {error}", flush=True)


def unshare(flags: int) -> None:
    """Leave the machine's namespaces of these kinds (of pid: the next child does)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)} (root is needed)")


def mount_private(run: Path, binds: dict[str, str]) -> None:
    """Give this namespace a /proc, a /run and the folders of `binds` (path -> folder that takes its place) of its own.

    Only `run`, below /run, stays the machine's: it has the sockets that the machine talks to.
    """

    def mount(*arguments: str) -> None:
        subprocess.run(["mount", *arguments], check=True)

    mount("--make-rprivate", "/")
    # The kubelet and containerd hand mounts to each other: inside the namespace they are shared.
    mount("--make-rshared", "/")
    mount("-t", "proc", "proc", "/proc")
    for target, folder in binds.items():
        mount("--bind", folder, target)
    # A bind mount of the machine's folder keeps it reachable while /run is covered.
    aside = Path(binds["/var/log"]) / "run"
    aside.mkdir(exist_ok=True)
    mount("--bind", str(run), str(aside))
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    run.mkdir(parents=True)
    mount("--bind", str(aside), str(run))
    subprocess.run(["umount", str(aside)], check=True)


def main(specification: dict[str, Any]) -> None:
    """Fork the first process; return in the caller once it listens, never in the first process itself."""
    unshare(CLONE_NEWPID)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        if os.read(reader, 1) != b"+":
            _, status = os.waitpid(pid, 0)
            raise SystemExit(f"the instance's first process ended with {os.waitstatus_to_exitcode(status)}")
        ProcessRecord.of(pid).write(Path(specification["record"]))
        return
    os.close(reader)
    os.setsid()
    log = os.open(specification["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWNET)
    socket.sethostname(specification["hostname"])
    mount_private(Path(specification["run"]), specification["binds"])
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(specification["socket"])
    listener.listen(16)
    os.write(writer, b"+")
    os.close(writer)
    serve(listener)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
