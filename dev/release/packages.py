"""Decides how the Python packages are made. Called by the command and by tests of what is installed.

The wheel has the object files of the decoder's loops for every processor that is shipped for, of this machine's kind (x86-64 or
arm64); on another kind it works, too, and each worker compiles for itself. The source distribution has sources only. They are
built in a folder of their own, so that nothing is left in the working tree and nothing of it gets in that is not named here.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dev.cluster.paths import cache
from dev.release.source import ReleaseError, Source

PARTS = ("operator/shardherd", "requirements", "CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml")
"""What the packages are made of."""

OBJECTS = Path("operator/shardherd/source/compiled/objects")
NO_PART = shutil.ignore_patterns("__pycache__", "*.pyc", "objects")


def uv() -> str:
    """The program that the environment was made with."""
    return shutil.which("uv") or str(cache() / "uv" / "bin" / "uv")


def build(source: Source, out: Path) -> tuple[Path, Path]:
    """Make the wheel and the source distribution in the folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="shardherd-packages-") as scratch:
        tree = Path(scratch) / "tree"
        for part in PARTS:
            _copy(source.repository / part, tree / part)
        _add_objects(tree / OBJECTS)
        locked = ["--require-hashes", "--build-constraints", str(tree / "requirements" / "build.lock")]
        # Not the wheel from the source distribution, as it has no object files.
        command = [uv(), "build", "--quiet", "--sdist", "--wheel", *locked, "--out-dir", str(out), str(tree)]
        certificates = {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1"}
        _run(command, source.environment() | certificates)
    # uv leaves it for folders that are in a repository.
    (out / ".gitignore").unlink(missing_ok=True)
    (wheel,) = out.glob(f"shardherd-{source.version}-*.whl")
    return wheel, out / f"shardherd-{source.version}.tar.gz"


def _copy(part: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if part.is_dir():
        shutil.copytree(part, place, ignore=NO_PART)
    else:
        shutil.copy(part, place)


def _add_objects(place: Path) -> None:
    """What was compiled of the same sources before is not compiled again: a file's name says of what it is."""
    compiling = [sys.executable, "-c", _COMPILING, str(cache() / "objects")]
    made = _run(compiling).split()
    place.mkdir(parents=True)
    for path in made:
        shutil.copy(path, place)


# numba takes long to import, and knows one processor for all of a process's life: what compiles is a process of its own.
_COMPILING = """
import pathlib, sys
from shardherd.source.compiled.compiling import build
print(*build(pathlib.Path(sys.argv[1])), sep="\\n")
"""


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()
        raise ReleaseError(f"`{' '.join(command)}` ended with {done.returncode}:\n{said[-4000:]}")
    return done.stdout
