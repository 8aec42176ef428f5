"""For which processors the compiled loops are shipped, by which compiler, and which of them this process loads.

`compiling` compiles for them when a wheel or an image is built, `machine_code` loads what is there. Reads nothing but what
Linux says of the machine, or else LLVM, which takes 40 MB of memory to ask; and numba's own variable NUMBA_CPU_NAME: with the
name of a shipped processor it is that one.

numba keeps its own cache by the name and the features of the processor that it runs on: what one machine has compiled another
one compiles again. So no cache of numba's is used: what it compiles for a named processor is kept as object files. Their
names say for which system and processor they are; they need nothing of numba, and any LLVM loads them.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

COMPILER = {"numba": "0.68.1", "llvmlite": "0.50.0"}
"""What the loops were last compiled and tested with: a part of every object file's name.

The lock file's versions, and a test fails when they are not. It is stated and not asked for, because an object file is right
with whatever numba is installed beside it: a newer one must not make every worker compile anew. What is relied upon is: numba's
optimised code of a function (`get_llvm_str`), and its calling convention, which `machine_code` spells out; that NUMBA_CPU_NAME
and NUMBA_CPU_FEATURES decide what it optimises for, which `compiling` checks; the names of LLVM's processors and features.
"""


@dataclass(frozen=True, slots=True)
class Processor:
    """What code is compiled for. `name` is a part of the file's name, `cpu` is LLVM's name, `features` those that it must have.

    `without` are features that must not be used although LLVM's `cpu` has them.
    """

    name: str
    cpu: str
    features: frozenset[str]
    without: frozenset[str] = frozenset()

    @property
    def flags(self) -> str:
        """The features as LLVM takes them."""
        return ",".join([*(f"+{each}" for each in sorted(self.features)), *(f"-{each}" for each in sorted(self.without))])


# https://gitlab.com/x86-psABIs/x86-64-ABI defines the levels; LLVM has other names for LAHF-SAHF and OSXSAVE.
_V2 = frozenset(("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3"))
_V3 = _V2 | frozenset(("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"))

_LINUX = {"bmi": "bmi1", "lzcnt": "abm", "sahf": "lahf_lm", "sse3": "pni"}
"""Features to which Linux gives other names, beside writing _ for a dot. It lists none that it does not let a program use."""

SHIPPED = {
    "x86_64": (Processor("x86-64-v3", "x86-64-v3", _V3), Processor("x86-64-v2", "x86-64-v2", _V2)),
    "aarch64": (Processor("arm64", "generic", frozenset(("fp-armv8", "neon"))),),
}
"""By the machine's kind, the best first."""

_KINDS = {"amd64": "x86_64", "arm64": "aarch64"}
"""Other systems' names."""


def system() -> str:
    """The system whose object files are loaded here: its format, and the machine's kind."""
    return f"{sys.platform}-{_kind()}"


def shipped() -> tuple[Processor, ...]:
    """Those that are compiled for when a wheel or an image is built on a machine of this kind."""
    return SHIPPED.get(_kind(), ())


@cache
def here() -> Processor:
    """The one to load code for: the best that is shipped and that this machine can run, or else this machine's own."""
    has = _has()
    named = [each for each in shipped() if each.cpu == os.environ.get("NUMBA_CPU_NAME")]
    if able := [*named, *(each for each in shipped() if each.features <= has)]:
        return able[0]
    own, there = _by_llvm()
    has = frozenset(name for name, is_there in there.items() if is_there)
    return Processor(f"own-{own}", own, has, frozenset(there) - has)


def missing() -> frozenset[str]:
    """What the oldest shipped processor has and this machine has not."""
    return shipped()[-1].features - _has() if shipped() else frozenset()


CPU_INFO = Path("/proc/cpuinfo")


def _has() -> frozenset[str]:
    """Those of this machine's features that are known here, by LLVM's names."""
    if _kind() == "x86_64" and CPU_INFO.exists():
        lines = CPU_INFO.read_text().splitlines()
        flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
        if flags:
            return frozenset(name for name in _V3 if _LINUX.get(name, name.replace(".", "_")) in flags)
    return frozenset(name for name, is_there in _by_llvm()[1].items() if is_there)


def _by_llvm() -> tuple[str, dict[str, bool]]:
    import llvmlite.binding as llvm

    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features()


def _kind() -> str:
    machine = platform.machine().lower()
    return _KINDS.get(machine, machine)
