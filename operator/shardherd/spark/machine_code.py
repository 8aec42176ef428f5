"""Loops that numba compiles once, and that are then loaded as machine code without numba.

Importing numba takes longer than everything else that a Python worker does before its first row. So numba compiles a library
only where there is no object file yet for its source, these versions and this processor; then llvmlite alone loads it. The
file lies in NUMBA_CACHE_DIR, or else in `__pycache__` beside this module. `native` and `values.native` have the libraries;
`python -m shardherd.spark.machine_code` compiles all of them, as an image's build does.

With NUMBA_BOUNDSCHECK=1 numba runs them, and an access outside of an array raises IndexError.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

LIBRARIES = ("shardherd.spark.native", "shardherd.spark.values.native")
"""Modules whose LIBRARIES are what can be compiled."""

_HERE = Path(__file__).parent

_KINDS = {
    "B": (np.dtype(np.uint8), 1),
    "I": (np.dtype(np.int32), 1),
    "L": (np.dtype(np.int64), 1),
    "T": (np.dtype(np.int64), 2),
}

# An array without an owner is never given back, so this is never called.
_STUB = "define void @NRT_MemInfo_call_dtor(ptr %info) {\n  ret void\n}\n"
_FROM_THE_PROCESS = ("memcpy", "memmove", "memset")


@dataclass(frozen=True)
class Library:
    """Functions that are compiled together.

    `module` has them in SIGNATURES: name -> (numba's signature, function); it is imported to compile, and never to load. All
    return an integer and allocate nothing. `arguments` is what each takes, in numba's order, by a letter for each: B, I and L
    are arrays of bytes, 32- and 64-bit integers, T a table of 64-bit integers, n a number. `sources` are the files, beside
    this module, that the code depends on.
    """

    name: str
    module: str
    sources: tuple[str, ...]
    arguments: Mapping[str, str]

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def file_name(self) -> str:
        """Of the object file: a digest of all that it depends on."""
        return _file_name(self)

    def functions(self) -> Mapping[str, Callable[..., int]]:
        """All of them, ready to be called."""
        return _functions(self)

    def prepare(self) -> Path | None:
        """Compile it if need be; the object file, or None if no folder for it can be written."""
        path = existing(self.file_name)
        return kept(self.file_name, self.compiled()) if path is None else path

    def compiled(self) -> bytes:
        """An object file with the functions under their own names."""
        import numba

        whole: Any = llvm.parse_assembly(_STUB)
        njit: Any = numba.njit
        for name, (signature, function) in self._signatures().items():
            made = njit(signature, nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
            (result,) = made.overloads.values()
            module = llvm.parse_assembly(result.library.get_llvm_str())
            module.get_function(result.fndesc.llvm_func_name).name = name
            whole.link_in(module)
        unknown = [each.name for each in whole.functions if each.is_declaration and not each.name.startswith("llvm.")]
        if unknown := sorted(set(unknown) - set(_FROM_THE_PROCESS)):
            raise RuntimeError(
                f"the compiled {self.name} need {', '.join(unknown)}, which nobody has: numba {numba.__version__}"
            )
        code: bytes = _machine().emit_object(whole)
        return code

    def checked(self) -> dict[str, Callable[..., int]]:
        """The functions as numba runs them, with bounds checks."""
        import numba

        njit: Any = numba.njit
        return {name: njit(signature, cache=True)(function) for name, (signature, function) in self._signatures().items()}

    def _signatures(self) -> Mapping[str, tuple[Any, Callable[..., Any]]]:
        found: Mapping[str, tuple[Any, Callable[..., Any]]] = importlib.import_module(self.module).SIGNATURES
        return found


@cache
def _functions(library: Library) -> Mapping[str, Callable[..., int]]:
    if os.environ.get("NUMBA_BOUNDSCHECK") == "1":
        return library.checked()
    path = existing(library.file_name)
    code = path.read_bytes() if path is not None else None
    if code is None:
        code = library.compiled()
        kept(library.file_name, code)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return {name: _callable(engine, name, letters) for name, letters in library.arguments.items()}


@cache
def _file_name(library: Library) -> str:
    parts = [llvmlite.__version__.encode(), llvm.get_host_cpu_name().encode(), llvm.get_host_cpu_features().flatten().encode()]
    parts += [(_HERE / each).read_bytes() for each in (*library.sources, Path(__file__).name)]
    return f"shardherd-{library.name}-{hashlib.sha256(b'/'.join(parts)).hexdigest()[:20]}.o"


def _machine() -> Any:
    """This machine's processor."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="pic",
        codemodel="small",
        jit=True,
    )


def _callable(engine: Any, name: str, letters: str) -> Callable[..., int]:
    """One kernel, called by numba's own convention: the result and a failure by reference, arrays as their parts."""
    parts: list[Any] = [ctypes.c_void_p, ctypes.c_void_p]
    for letter in letters:
        if letter == "n":
            parts.append(ctypes.c_int64)
        else:
            # Owner, parent, number of items, size of one, where they are, and per dimension the length and the stride.
            dimensions = _KINDS[letter][1]
            parts += [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
            parts += [ctypes.c_int64] * (2 * dimensions)
    function = ctypes.CFUNCTYPE(ctypes.c_int32, *parts)(engine.get_function_address(name))

    def call(*arguments: Any) -> int:
        assert engine  # it owns the code
        result, failure = ctypes.c_int64(), ctypes.c_void_p()
        flat: list[Any] = [ctypes.addressof(result), ctypes.addressof(failure)]
        for letter, given in zip(letters, arguments, strict=True):
            if letter == "n":
                flat.append(given)
            else:
                _flatten(given, letter, flat)
        if status := function(*flat):
            raise RuntimeError(f"kernel {name} failed with {status}")
        return result.value

    return call


def _flatten(array: npt.NDArray[Any], letter: str, into: list[Any]) -> None:
    """An array's parts. Raises TypeError for one that the kernel was not compiled for: it would read beyond it."""
    dtype, dimensions = _KINDS[letter]
    if array.dtype != dtype or array.ndim != dimensions or not array.flags.c_contiguous:
        raise TypeError(f"an array of {dtype} with {dimensions} dimensions is needed, not of {array.dtype} with {array.ndim}")
    into += [None, None, array.size, array.itemsize, array.__array_interface__["data"][0], *array.shape, *array.strides]


# --- the object files ---------------------------------------------------------------------------------------------------------


def _folders() -> list[Path]:
    """Where object files may be, best first."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    return [*([Path(given)] if given else []), _HERE / "__pycache__"]


def existing(name: str) -> Path | None:
    """The object file of this name, if there is one."""
    return next((path for path in (folder / name for folder in _folders()) if path.exists()), None)


def kept(name: str, code: bytes) -> Path | None:
    """Write an object file where that is possible, at once whole: other workers may be looking for it."""
    for folder in _folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as scratch:
                scratch.write(code)
            # A temporary file is its maker's alone; an image is built by one user and run by another.
            Path(scratch.name).chmod(0o644)
            Path(scratch.name).rename(folder / name)
        except OSError:
            continue
        return folder / name
    return None


def main() -> None:
    """Compile every library that is not."""
    # By name: run as a program this module is another one than the one that they import.
    for module in LIBRARIES:
        for library in importlib.import_module(module).LIBRARIES:
            print(f"{library.name} are compiled: {library.prepare()}")


if __name__ == "__main__":
    main()
