"""The kernels as machine code that is compiled once and then loaded without numba.

Importing numba takes longer than everything else that a Python worker does before its first row. So numba compiles `kernels`
only where there is no object file yet for this source, these versions and this processor; then llvmlite alone loads it.
The file lies in NUMBA_CACHE_DIR, or else beside this module. `records` and `columns` call it.

With NUMBA_BOUNDSCHECK=1 numba runs them, and an access outside of an array raises IndexError.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]

_HERE = Path(__file__).parent
_SOURCES = ("layout.py", "kernels.py", "native.py")

# What each kernel takes, in numba's order: a letter for each argument. B, I and L are arrays of bytes, 32- and 64-bit integers,
# T a table of 64-bit integers, n a number.
_ARGUMENTS = {
    "count_batches": "B",
    "scan": "BT",
    "count_headers": "BBTn",
    "records": "BBTnnnn" + "LLI" + "IBB" + "IBB" + "IB" + "IB" + "IBB" + "L",
}
_KINDS = {
    "B": (np.dtype(np.uint8), 1),
    "I": (np.dtype(np.int32), 1),
    "L": (np.dtype(np.int64), 1),
    "T": (np.dtype(np.int64), 2),
}

# An array without an owner is never given back, so this is never called.
_STUB = "define void @NRT_MemInfo_call_dtor(ptr %info) {\n  ret void\n}\n"
_FROM_THE_PROCESS = ("memcpy", "memmove", "memset")


def count_batches(data: Bytes) -> int:
    """See `kernels.count_batches`."""
    return _functions()["count_batches"](data)


def scan(data: Bytes, batches: Longs) -> int:
    """See `kernels.scan`."""
    return _functions()["scan"](data, batches)


def count_headers(data: Bytes, plain: Bytes, batches: Longs, last: int) -> int:
    """See `kernels.count_headers`."""
    return _functions()["count_headers"](data, plain, batches, last)


def records(*arguments: Bytes | Longs | Ints | int) -> int:
    """See `kernels.records`."""
    return _functions()["records"](*arguments)


def prepare() -> Path | None:
    """Compile the kernels if need be; the object file, or None if no folder for it can be written."""
    path = _existing()
    if path is None:
        path = _kept(_compiled())
    return path


@cache
def _functions() -> dict[str, Callable[..., int]]:
    """The kernels, ready to be called."""
    if os.environ.get("NUMBA_BOUNDSCHECK") == "1":
        return _checked()
    path = _existing()
    code = path.read_bytes() if path is not None else None
    if code is None:
        code = _compiled()
        _kept(code)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return {name: _callable(engine, name) for name in _ARGUMENTS}


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


def _callable(engine: Any, name: str) -> Callable[..., int]:
    """One kernel, called by numba's own convention: the result and a failure by reference, arrays as their parts."""
    letters = _ARGUMENTS[name]
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


# --- compiling, with numba ----------------------------------------------------------------------------------------------------


def _compiled() -> bytes:
    """An object file with the kernels under their own names."""
    import numba

    from shardherd.spark.kernels import SIGNATURES

    whole: Any = llvm.parse_assembly(_STUB)
    njit: Any = numba.njit
    for name, (signature, function) in SIGNATURES.items():
        made = njit(signature, nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
        (result,) = made.overloads.values()
        module = llvm.parse_assembly(result.library.get_llvm_str())
        module.get_function(result.fndesc.llvm_func_name).name = name
        whole.link_in(module)
    unknown = [each.name for each in whole.functions if each.is_declaration and not each.name.startswith("llvm.")]
    if unknown := sorted(set(unknown) - set(_FROM_THE_PROCESS)):
        raise RuntimeError(f"the compiled kernels need {', '.join(unknown)}, which nobody has: numba {numba.__version__}")
    code: bytes = _machine().emit_object(whole)
    return code


def _checked() -> dict[str, Callable[..., int]]:
    """The kernels as numba runs them, with bounds checks."""
    import numba

    from shardherd.spark.kernels import SIGNATURES

    njit: Any = numba.njit
    return {name: njit(signature, cache=True)(function) for name, (signature, function) in SIGNATURES.items()}


# --- the object file ----------------------------------------------------------------------------------------------------------


@cache
def _name() -> str:
    """What the object file depends on."""
    parts = [llvmlite.__version__.encode(), llvm.get_host_cpu_name().encode(), llvm.get_host_cpu_features().flatten().encode()]
    parts += [(_HERE / each).read_bytes() for each in _SOURCES]
    return f"shardherd-kernels-{hashlib.sha256(b'/'.join(parts)).hexdigest()[:20]}.o"


def _folders() -> list[Path]:
    """Where the object file may be, best first."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    return [*([Path(given)] if given else []), _HERE / "__pycache__"]


def _existing() -> Path | None:
    return next((path for path in (folder / _name() for folder in _folders()) if path.exists()), None)


def _kept(code: bytes) -> Path | None:
    """Write the object file where that is possible, at once whole: other workers may be looking for it."""
    for folder in _folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as scratch:
                scratch.write(code)
            # A temporary file is its maker's alone; an image is built by one user and run by another.
            Path(scratch.name).chmod(0o644)
            Path(scratch.name).rename(folder / _name())
        except OSError:
            continue
        return folder / _name()
    return None
