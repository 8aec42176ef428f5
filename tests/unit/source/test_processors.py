"""For which processors the loops are shipped, and that a worker on another model than the builder's compiles nothing."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from shardherd.source.compiled import compiling, machine_code, processors
from shardherd.source.compiled.compiling import CompilingError, compiled, libraries
from shardherd.source.compiled.machine_code import Library
from shardherd.source.compiled.processors import COMPILER, SHIPPED, Processor, here
from shardherd.source.values.compiled_values import TEXTS
from tests.harness.objects import objects
from tests.unit.source.kafka_bytes import Record, batch_of

ROOT = Path(__file__).parents[3]
V3, V2 = SHIPPED["x86_64"]

# Every Python that is started with it reads it, and so does the one that a worker starts to compile.
SITE = """
import llvmlite.binding as llvm
from numba.core import event
from shardherd.source.compiled import processors

llvm.get_host_cpu_name = lambda: {name!r}
llvm.get_host_cpu_features = lambda: llvm.targets.FeatureMap({features!r})
processors._has = lambda: frozenset(name for name, there in {features!r}.items() if there)

class Counting(event.Listener):
    def on_start(self, event):
        with open({log!r}, "a") as log:
            log.write("one\\n")

    def on_end(self, event):
        pass

event.register("numba:compile", Counting())
"""

COUNT_BATCHES = f"""
import numpy
from shardherd.source.decoding import compiled_records
print(compiled_records.count_batches(numpy.frombuffer(bytes.fromhex({batch_of([Record(7), Record(9)]).hex()!r}), numpy.uint8)))
"""

TEXT_BOUND = """
import numpy
from shardherd.source.values import compiled_values
for _ in range(2):
    print(compiled_values.text_bound(numpy.zeros(2, numpy.int64), numpy.zeros(1, numpy.uint8), 0))
"""


@dataclass(frozen=True)
class Done:
    """What came of a child process: what it printed, what it logged, and how often numba compiled a function."""

    printed: str
    logged: list[str]
    compilations: int


def on(name: str, features: frozenset[str], code: str, folder: Path, *, kept: Path) -> Done:
    """Run code in a Python that takes its machine for another one."""
    every = V3.features | features
    log, place = folder / "compilations", folder / "place"
    place.mkdir()
    site = SITE.format(name=name, features={each: each in features for each in sorted(every)}, log=str(log))
    (place / "sitecustomize.py").write_text(site)
    environment = {**os.environ, "PYTHONPATH": f"{place}:{ROOT / 'operator'}", "NUMBA_CACHE_DIR": str(kept)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Done(done.stdout, done.stderr.splitlines(), len(log.read_text().splitlines()) if log.exists() else 0)


@pytest.fixture(autouse=True)
def _x86() -> None:
    assert processors.shipped() == SHIPPED["x86_64"], "these tests tell an x86-64 machine that it is another one"


@pytest.mark.parametrize(
    ("features", "loaded"),
    [
        (V3.features | {"aes", "fsgsbase"}, "x86-64-v3"),
        (V3.features | {"avx512f", "avx512bw"}, "x86-64-v3"),
        (V2.features, "x86-64-v2"),
        # A virtual machine may hide some.
        (V3.features - {"movbe"}, "x86-64-v2"),
        (V2.features - {"popcnt"}, "own-model"),
    ],
)
def test_the_best_is_loaded_that_the_machine_can_run(
    features: frozenset[str], loaded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processors, "_has", lambda: features)
    monkeypatch.setattr(processors, "_by_llvm", lambda: ("model", {each: each in features for each in V3.features | features}))

    assert here.__wrapped__().name == loaded


def test_linux_names_the_same_features_as_llvm() -> None:
    there = llvm.get_host_cpu_features()

    assert processors._has() == {each for each in V3.features if there[each]}


@pytest.mark.parametrize(
    ("flags", "lacks"),
    [
        ("fpu cx16 popcnt lahf_lm pni sse4_1 sse4_2 ssse3 avx avx2 bmi1 bmi2 f16c fma abm movbe xsave", set()),
        ("fpu cx16 popcnt lahf_lm pni sse4_1 sse4_2 ssse3 avx bmi1 fma abm xsave", {"avx2", "bmi2", "f16c", "movbe"}),
        ("fpu popcnt pni ssse3", V3.features - {"popcnt", "sse3", "ssse3"}),
    ],
)
def test_what_linux_does_not_list_is_not_used(
    flags: str, lacks: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nmodel name\t: any\nflags\t\t: {flags}\nbugs\t\t:\n")
    monkeypatch.setattr(processors, "CPU_INFO", tmp_path / "cpuinfo")

    assert processors._has() == V3.features - lacks


def test_where_linux_says_nothing_llvm_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "CPU_INFO", tmp_path / "none")
    monkeypatch.setattr(processors, "_by_llvm", lambda: ("model", {"avx2": True, "fma": False}))

    assert processors._has() == {"avx2"}


def test_a_machine_of_another_kind_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "_by_llvm", lambda: ("own", {"neon": True, "fp-armv8": True, "sve": True}))
    found = {}
    for kind in ("aarch64", "arm64", "riscv64"):
        monkeypatch.setattr(platform, "machine", lambda kind=kind: kind)
        found[kind] = (here.__wrapped__().name, processors.system())

    assert found["aarch64"] == found["arm64"] == ("arm64", "linux-aarch64")
    assert (found["riscv64"][0].partition("-")[0], found["riscv64"][1]) == ("own", "linux-riscv64")


@pytest.mark.parametrize(
    ("name", "features", "loaded"),
    [("haswell", V3.features | {"aes"}, "x86-64-v3"), ("nehalem", V2.features | {"aes"}, "x86-64-v2")],
)
def test_a_worker_on_another_model_finds_what_is_shipped_and_compiles_nothing(
    name: str, features: frozenset[str], loaded: str, tmp_path: Path
) -> None:
    shipped = objects()
    there = sorted(shipped.iterdir())
    code = f"{COUNT_BATCHES}\nfrom shardherd.source.compiled.processors import here\nprint(here().name)"

    assert on(name, features, code, tmp_path, kept=shipped) == Done(f"1\n{loaded}\n", [], 0)
    assert sorted(shipped.iterdir()) == there


def test_a_worker_older_than_all_that_is_shipped_compiles_for_itself_and_says_why(tmp_path: Path) -> None:
    core2 = V2.features - {"popcnt", "sse4.1", "sse4.2"}
    done = on("core2", core2, TEXT_BOUND, tmp_path, kept=tmp_path / "kept")

    assert done.printed == "0\n0\n"
    assert done.logged == [
        "compiling the decoder's loops, which takes some seconds for each format: no object files, as this processor, core2, "
        "is older than x86-64-v2, the oldest that is shipped for: it lacks popcnt, sse4.1, sse4.2"
    ]
    assert done.compilations >= len(TEXTS.arguments)
    assert [path.name.rpartition("-")[0] for path in (tmp_path / "kept").iterdir()] == [
        "shardherd-texts-linux-x86_64-own-core2"
    ]


def test_a_checkout_without_object_files_says_once_how_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(machine_code, "SHIPPED_FOLDER", tmp_path / "objects")
    monkeypatch.setattr(machine_code, "_folders", lambda: [tmp_path / "kept"])
    monkeypatch.setattr(compiling, "compiled", lambda wanted, processor: {wanted[0].name: processor.name.encode()})
    machine_code._say_why.cache_clear()

    prepared = [library.prepare() for library in libraries()]

    own = here()
    assert prepared == [tmp_path / "kept" / library.file_name(own) for library in libraries()]
    assert {path.read_bytes() for path in prepared if path} == {own.name.encode()}
    assert caplog.messages == [
        f"compiling the decoder's loops, which takes some seconds for each format: no object files, as {tmp_path}/objects "
        f"has none for {own.name} ({processors.system()}): they are made by `python -m shardherd.source.compiled.compiling`"
    ]


def test_older_code_makes_the_same_of_all_that_the_property_tests_read() -> None:
    shipped = objects()
    answers = []
    for processor in (V2, V3):
        site = {"PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}", "NUMBA_CACHE_DIR": str(shipped), "NUMBA_CPU_NAME": processor.cpu}
        done = subprocess.run(
            [sys.executable, "-m", "tests.property.answers"],
            cwd=ROOT,
            env={**os.environ, **site},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        answers.append(json.loads(done.stdout))

    older, newer = answers
    assert (older.pop("processor"), newer.pop("processor")) == ("x86-64-v2", "x86-64-v3")
    assert older == newer


def test_each_processor_has_code_of_its_own() -> None:
    found = {path.name for path in objects().iterdir()}
    for library in libraries():
        older, newer = library.file_name(V2), library.file_name(V3)
        assert {older, newer} <= found
        assert (objects() / older).read_bytes() != (objects() / newer).read_bytes()


def test_a_function_that_brings_a_processor_of_its_own_is_refused() -> None:
    """LLVM would use that one's instructions, whatever it was told to compile for."""
    code = "define void @f() #0 {\n  ret void\n}\nattributes #0 = { nounwind %s }\n"
    compiling.refuse_a_processor_of_its_own("f", code % "")

    for attribute in ('"target-cpu"="znver4"', '"target-features"="+avx512f"'):
        with pytest.raises(CompilingError, match=r'numba .* gives f the attribute "target-'):
            compiling.refuse_a_processor_of_its_own("f", code % attribute)


def test_the_compiler_is_the_one_that_is_stated() -> None:
    """If this fails, numba was renewed: read `processors.COMPILER`, run this file and tests/property, then state it."""
    assert {name: version(name) for name in COMPILER} == COMPILER
    for lock in ("spark.lock", "dev.lock"):
        locked = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "requirements" / lock).read_text(), re.MULTILINE))
        assert {name: locked[name] for name in COMPILER} == COMPILER


def test_a_numba_that_compiles_for_another_processor_than_it_was_told_is_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("from numba.core import config; config.CPU_NAME = 'znver4'\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    with pytest.raises(CompilingError, match="compiling texts for x86-64-v2 ended with 1: see what it printed"):
        compiled([TEXTS], V2)

    assert (
        "was told to compile for x86-64-v2, +cx16,+popcnt,+sahf,+sse3,+sse4.1,+sse4.2,+ssse3, but does for"
        in capfd.readouterr().err
    )


def test_without_a_python_to_start_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")

    with pytest.raises(CompilingError, match=r"sys\.executable names no Python"):
        compiled([TEXTS], V2)


def test_a_build_makes_only_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, Processor]] = []

    def played(wanted: list[Library], processor: Processor) -> dict[str, bytes]:
        made.extend((each.name, processor) for each in wanted)
        return {each.name: b"code" for each in wanted}

    monkeypatch.setattr(compiling, "compiled", played)
    (tmp_path / "shardherd-texts-of-other-sources.o").write_bytes(b"old")
    (tmp_path / TEXTS.file_name(V2)).write_bytes(b"there")

    compiling.main([str(tmp_path)])

    everything = {(library.name, processor) for library in libraries() for processor in (V3, V2)}
    assert sorted(made, key=repr) == sorted(everything - {("texts", V2)}, key=repr)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        library.file_name(processor): b"there" if (library, processor) == (TEXTS, V2) else b"code"
        for library in libraries()
        for processor in (V3, V2)
    }
