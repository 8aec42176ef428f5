"""Runs every check of the project, quick ones first, and stops at the first kind that fails.

`make test` and `make lint` call it. While the quick tests run, the programs and images that the slow ones need are built in the
background. The last lines that it prints are pytest's own summary. It ends what it started, also when it is told to end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from dev.cluster.everything import time_left
from dev.cluster.paths import cache

ROOT = Path(__file__).resolve().parents[1]
LINT = {
    "format": ["ruff", "format", "--check", "--quiet", "."],
    "lint": ["ruff", "check", "--quiet", "."],
    "types": ["mypy"],
    "import contracts": ["lint-imports", "--no-logo"],
}
PREPARE = ["-m", "dev.cluster", "everything"]
BESIDE = ("tests/integration/local", "tests/integration/spark")
"""Of the slow tiers, what runs in two processes beside the rest, which takes as long as each of them."""
ALONE = "tests/integration/local/test_demo.py,tests/e2e"
"""What starts a node with all its programs, or promises what happens within seconds: nothing runs beside it."""


def tool(name: str) -> str:
    """A program of this environment."""
    return str(Path(sys.executable).parent / name)


def lint() -> bool:
    """Run the linters; what they say is printed only if they complain."""
    for name, (program, *arguments) in LINT.items():
        begun = time.monotonic()
        done = subprocess.run([tool(program), *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        print(f"{name}: {'ok' if done.returncode == 0 else 'FAILED'} ({time.monotonic() - begun:.1f} s)", flush=True)
        if done.returncode != 0:
            print((done.stdout + done.stderr).rstrip(), flush=True)
            return False
    return True


@contextlib.contextmanager
def building() -> Iterator[None]:
    """Build in the background what the later tiers need. A failure shows when they need it, so it is only noted here."""
    log = cache() / "logs" / "build.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    if left := time_left():
        print(f"building in the background what the later tests need: {left}, log in {log}", flush=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["nice", sys.executable, *PREPARE], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def tests() -> int:
    """All tiers in one run of pytest, with more processes beside it; its exit code. A signal to end is handed on to it."""
    beside = [option for folders in BESIDE for option in ("--beside", folders)]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.harness.beside",
        *beside,
        "--alone",
        ALONE,
        "--no-skips",
        "--durations=15",
        "tests",
    ]
    process = subprocess.Popen(command, cwd=ROOT)

    def hand_on(number: int, _frame: FrameType | None) -> None:
        process.send_signal(number)

    signal.signal(signal.SIGTERM, hand_on)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches pytest too: it is in our process group.
    return process.wait()


def main(arguments: list[str]) -> int:
    """`lint`, or everything."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments == ["lint"]:
        return 0 if lint() else 1
    with building():
        return tests() if lint() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
