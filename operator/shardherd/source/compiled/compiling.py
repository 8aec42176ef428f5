"""Compiles the loops by numba, for one processor in one process: `python -m shardherd.source.compiled.compiling`.

Run by the build of a wheel or an image it makes the folder `objects` beside this module (or the one that is given) hold the
object files of every processor that is shipped, and no others. `machine_code` calls `compiled` where a worker finds none: that
is a child process, too, because numba knows one processor for all of its life, and the worker's belongs to the application.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from shardherd.source.compiled import linking, machine_code
from shardherd.source.compiled.machine_code import Library
from shardherd.source.compiled.processors import Processor, shipped

LIBRARIES = (
    "shardherd.source.decoding.compiled_records",
    "shardherd.source.encoding.compiled_writing",
    "shardherd.source.values.compiled_values",
)
"""Modules whose LIBRARIES are what can be compiled."""

_CHILD = "--in-this-process"

# An array without an owner is never given back, so this is never called.
_STUB = "define void @NRT_MemInfo_call_dtor(ptr %info) {\n  ret void\n}\n"


class CompilingError(RuntimeError):
    """The loops could not be compiled. Says why."""


def libraries() -> list[Library]:
    """All of them."""
    return [library for module in LIBRARIES for library in importlib.import_module(module).LIBRARIES]


def compiled(wanted: Sequence[Library], processor: Processor) -> dict[str, bytes]:
    """An object file of each, by its name, from a process of its own. Raises CompilingError; what numba says is on stderr."""
    if not sys.executable:
        raise CompilingError("the loops cannot be compiled: sys.executable names no Python to do it with")
    # What the application says to numba is not meant for these loops.
    kept = {name: text for name, text in os.environ.items() if not name.startswith("NUMBA_")}
    ours = {
        "NUMBA_CPU_NAME": processor.cpu,
        "NUMBA_CPU_FEATURES": processor.flags,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    names = [each.name for each in wanted]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "shardherd.source.compiled.compiling", _CHILD, *names],
        env={**kept, **ours},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode != 0:
        raise CompilingError(
            f"compiling {', '.join(names)} for {processor.name} ended with {done.returncode}: see what it printed"
        )
    found: dict[str, bytes] = pickle.loads(done.stdout)
    return found


def build(folder: Path) -> list[Path]:
    """Object files of every library for every processor that is shipped; those that are there already are not made again."""
    folder.mkdir(parents=True, exist_ok=True)
    for processor in shipped():
        lacking = {each.name: each for each in libraries() if not (folder / each.file_name(processor)).exists()}
        for name, code in (compiled(list(lacking.values()), processor) if lacking else {}).items():
            machine_code.write(folder, lacking[name].file_name(processor), code)
    return sorted(folder / each.file_name(processor) for processor in shipped() for each in libraries())


def _in_this_process(names: Sequence[str]) -> dict[str, bytes]:
    return {each.name: _object_file(each) for each in libraries() if each.name in names}


def _object_file(library: Library) -> bytes:
    """An object file with the functions under their own names, for the processor that numba was told of."""
    import numba
    from numba.core.registry import cpu_target

    cpu, features = os.environ["NUMBA_CPU_NAME"], os.environ["NUMBA_CPU_FEATURES"]
    numba_says = cpu_target.target_context.codegen().magic_tuple()[1:]
    if numba_says != (cpu, features):
        raise CompilingError(f"numba {numba.__version__} was told to compile for {cpu}, {features}, but does for {numba_says}")
    whole: Any = llvm.parse_assembly(_STUB)
    njit: Any = numba.njit
    for name, (signature, function) in library.signatures().items():
        made = njit(signature, nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
        (result,) = made.overloads.values()
        optimised = result.library.get_llvm_str()
        refuse_a_processor_of_its_own(name, optimised)
        module = llvm.parse_assembly(optimised)
        module.get_function(result.fndesc.llvm_func_name).name = name
        whole.link_in(module)
    unknown = [each.name for each in whole.functions if each.is_declaration and not each.name.startswith("llvm.")]
    if unknown := sorted(set(unknown) - set(linking.FROM_THE_PROCESS)):
        raise CompilingError(
            f"the compiled {library.name} need {', '.join(unknown)}, which nobody has: numba {numba.__version__}"
        )
    code: bytes = _machine(cpu, features).emit_object(whole)
    return code


def _machine(cpu: str, features: str) -> Any:
    """LLVM's view of a processor of this machine's kind."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=cpu, features=features, opt=3, reloc="pic", codemodel="small", jit=True)


def refuse_a_processor_of_its_own(function: str, code: str) -> None:
    """Raise CompilingError if LLVM would take a function's attribute for the processor that it is told of."""
    import numba

    for attribute in ('"target-cpu"', '"target-features"'):
        if attribute in code:
            raise CompilingError(
                f"numba {numba.__version__} gives {function} the attribute {attribute}: it may not run everywhere"
            )


def main(arguments: Sequence[str]) -> None:
    """Compile for all that is shipped, into the folder that is given; or, as a child, what is asked for."""
    if arguments and arguments[0] == _CHILD:
        # What is printed on the way must not get between the bytes.
        answer = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        with answer:
            pickle.dump(_in_this_process(arguments[1:]), answer)
        return
    folder = Path(arguments[0]) if arguments else machine_code.SHIPPED_FOLDER
    made = build(folder)
    for path in set(folder.glob("*.o")) - set(made):
        path.unlink()  # of other sources
    for path in made:
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
