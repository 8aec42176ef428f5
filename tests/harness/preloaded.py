"""`shardherd` that is loaded once: each call of it is a fork of that process, with the caller's words, folder, environment and
files. For tests that type many of its commands, of which each would take a second or two to load what it imports.

`python -m tests.harness.preloaded SOCKET` serves; `Preloaded` starts that, and makes the program that calls it. A signal
reaches the caller alone: a command that goes on until Ctrl-C is to be the real program.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]

CALLER = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as served:
    served.connect({path!r})
    call = json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(served, [len(call).to_bytes(4, "big")], [0, 1, 2])
    served.sendall(call)
    said = served.recv(16)
sys.exit(int(said) if said else "the preloaded program died")
"""


class Preloaded:
    """A folder with the program `shardherd`."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder
        self._socket = folder / "socket"
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Preloaded:
        self.bin.mkdir()
        caller = self.bin / "shardherd"
        caller.write_text(CALLER.format(python=sys.executable, path=str(self._socket)))
        caller.chmod(0o755)
        command = [sys.executable, "-m", "tests.harness.preloaded", str(self._socket)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.communicate()


def serve(path: str) -> None:
    """Answer calls until a signal ends it."""
    from shardherd.inspect import commands

    assert commands.app is not None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            caller, _ = listener.accept()
            with caller:
                if os.fork() == 0:
                    _answer(caller)


def _answer(caller: socket.socket) -> None:
    """Be the program, and say how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, files, _, _ = socket.recv_fds(caller, 4, 3)
    with caller.makefile("rb") as sent:
        words, folder, environment = json.loads(sent.read(int.from_bytes(length, "big")))
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.argv = words
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    from kubernetes import config

    from shardherd.cli import main

    # These have read KUBECONFIG as they were imported.
    importlib.reload(config.kube_config)
    importlib.reload(config)

    code = 70
    try:
        code = main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        caller.sendall(str(code).encode())
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
