"""Loops that numba compiled, loaded as machine code without numba.

Importing numba takes longer than everything else that a Python worker does before its first row, and compiling many times that.
So object files for a few processors (`processors`) are shipped in the folder `objects` beside this module. `linking` loads
them, or llvmlite where that cannot. Where there is none for this machine (a source checkout, a processor older than all of
them), `compiling` makes it, and it is kept in NUMBA_CACHE_DIR, or else in `__pycache__` beside this module.
`decoding.compiled_records` and `values.compiled_values` have the libraries.

With NUMBA_BOUNDSCHECK=1 numba runs them, and an access outside of an array raises IndexError.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from shardherd.source.compiled import linking
from shardherd.source.compiled.processors import COMPILER, Processor, here, missing, shipped, system

log = logging.getLogger(__name__)

_HERE = Path(__file__).parent
_SOURCE = _HERE.parent

SHIPPED_FOLDER = _HERE / "objects"
"""What the build of a wheel or an image has compiled."""

# What decides, beside a library's own sources, what is compiled.
_COMPILING = "compiled/compiling.py"

_KINDS: dict[str, tuple[np.dtype[Any], int]] = {
    "B": (np.dtype(np.uint8), 1),
    "I": (np.dtype(np.int32), 1),
    "L": (np.dtype(np.int64), 1),
    "T": (np.dtype(np.int64), 2),
}
_KINDS |= {letter.lower(): kind for letter, kind in _KINDS.items()}
_NUMBER = "n"


@dataclass(frozen=True)
class Library:
    """Functions that are compiled together.

    `module` has them, as Python; it is imported to compile, and never to load. All return an integer and allocate nothing.
    `arguments` is the one table of their signatures: a letter for each argument, in order. B, I, L are arrays of bytes, 32- and
    64-bit integers, T a table of 64-bit integers; small letters are those that are written to; n is a number. `sources` are the
    files, below the folder of the source, that the code depends on.
    """

    name: str
    module: str
    sources: tuple[str, ...]
    arguments: Mapping[str, str]

    def __hash__(self) -> int:
        return hash(self.name)

    def file_name(self, processor: Processor) -> str:
        """Of the object file: for what it is, and a digest of all that it depends on."""
        return _file_name(self, processor)

    def functions(self) -> Mapping[str, Callable[..., int]]:
        """All of them, ready to be called."""
        return _functions(self)

    def compiled(self) -> bool:
        """Whether they can be loaded at once."""
        return existing(self.file_name(here())) is not None

    def prepare(self) -> Path | None:
        """Compile it for this machine if need be; the object file, or None if no folder for it can be written."""
        name = self.file_name(here())
        if existing(name) is None:
            kept(name, _compiled(self))
        return existing(name)

    def checked(self) -> dict[str, Callable[..., int]]:
        """The functions as numba runs them, with bounds checks."""
        import numba

        njit: Any = numba.njit
        return {name: njit(signature, cache=True)(function) for name, (signature, function) in self.signatures().items()}

    def signatures(self) -> Mapping[str, tuple[Any, Callable[..., Any]]]:
        """What is compiled: by name, numba's signature and the function."""
        module = importlib.import_module(self.module)
        return {name: (_signature(letters), getattr(module, name)) for name, letters in self.arguments.items()}


def _signature(letters: str) -> Any:
    """numba's for these arguments."""
    from numba import types

    known: Any = types
    scalars = {1: known.uint8, 4: known.int32, 8: known.int64}
    arguments = []
    for letter in letters:
        if letter == _NUMBER:
            arguments.append(known.int64)
        else:
            dtype, dimensions = _KINDS[letter]
            arguments.append(known.Array(scalars[dtype.itemsize], dimensions, "C", readonly=letter.isupper()))
    return known.int64(*arguments)


@cache
def _functions(library: Library) -> Mapping[str, Callable[..., int]]:
    if os.environ.get("NUMBA_BOUNDSCHECK") == "1":
        return library.checked()
    name = library.file_name(here())
    path = existing(name)
    if path is not None:
        code = path.read_bytes()
    else:
        code = _compiled(library)
        kept(name, code)
    try:
        loaded = linking.load(code)
        owner, addresses = loaded.memory, loaded.addresses
    except linking.UnlinkableError as error:
        log.debug("llvmlite loads %s: %s", path or library.name, error)
        owner, addresses = _loaded_by_llvm(code, library.arguments)
    return {name: Kernel(owner, addresses[name], name, letters) for name, letters in library.arguments.items()}


def _loaded_by_llvm(code: bytes, names: Iterable[str]) -> tuple[Any, Mapping[str, int]]:
    """What owns the code, and where each function is: for what is not linked here, such as code for arm64."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # It loads what is compiled and compiles nothing, so it need not know the processor.
    loading = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="small", jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), loading)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine, {name: engine.get_function_address(name) for name in names}


@cache
def _file_name(library: Library, processor: Processor) -> str:
    parts = [repr((sorted(COMPILER.items()), processor.cpu, processor.flags)).encode()]
    parts.append(repr(sorted(library.arguments.items())).encode())
    parts += [(_SOURCE / each).read_bytes() for each in (*library.sources, _COMPILING)]
    digest = hashlib.sha256(b"/".join(parts)).hexdigest()[:20]
    return f"shardherd-{library.name}-{system()}-{processor.name}-{digest}.o"


def _compiled(library: Library) -> bytes:
    from shardherd.source.compiled.compiling import compiled

    _say_why()
    return compiled([library], here())[library.name]


@cache
def _say_why() -> None:
    """Once a process. What is shipped compiles nowhere, so this is for whoever wonders about the seconds."""
    processor = here()
    if processor in shipped():
        made = "they are made by `python -m shardherd.source.compiled.compiling`"
        why = f"{SHIPPED_FOLDER} has none for {processor.name} ({system()}): {made}"
    elif shipped():
        lacks = ", ".join(sorted(missing()))
        oldest = f"{shipped()[-1].name}, the oldest that is shipped for"
        why = f"this processor, {processor.cpu}, is older than {oldest}: it lacks {lacks}"
    else:
        why = f"none are shipped for {system()}"
    log.warning("compiling the decoder's loops, which takes some seconds for each format: no object files, as %s", why)


class Kernel:
    """One compiled function, called by numba's own convention: the result and a failure by reference, arrays as their parts."""

    def __init__(self, owner: Any, address: int, name: str, letters: str) -> None:
        parts: list[Any] = [ctypes.c_void_p, ctypes.c_void_p]
        for letter in letters:
            if letter == _NUMBER:
                parts.append(ctypes.c_int64)
            else:
                # Owner, parent, number of items, size of one, where they are, and per dimension the length and the stride.
                dimensions = _KINDS[letter][1]
                parts += [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
                parts += [ctypes.c_int64] * (2 * dimensions)
        self._owner = owner  # the code is in it
        self._function = ctypes.CFUNCTYPE(ctypes.c_int32, *parts)(address)
        self._name = name
        self._letters = letters

    def __call__(self, *arguments: Any) -> int:
        return self._run(_flat(self._letters, arguments))

    def ending_with(self, *last: Any) -> Callable[..., int]:
        """The same, whose last arguments are always these. To look at an array takes longer than most short loops."""
        letters, parts = self._letters[: -len(last)], _flat(self._letters[-len(last) :], last)

        def call(*first: Any) -> int:
            assert last  # the arrays must not go before this does
            return self._run([*_flat(letters, first), *parts])

        return call

    def _run(self, parts: Sequence[Any]) -> int:
        result, failure = ctypes.c_int64(), ctypes.c_void_p()
        if status := self._function(ctypes.addressof(result), ctypes.addressof(failure), *parts):
            raise RuntimeError(f"kernel {self._name} failed with {status}")
        return result.value


def ending_with(function: Callable[..., int], *last: Any) -> Callable[..., int]:
    """A function of a library whose last arguments are always these."""
    if isinstance(function, Kernel):
        return function.ending_with(*last)
    return lambda *first: function(*first, *last)


def _flat(letters: str, arguments: Sequence[Any]) -> list[Any]:
    """The parts of arguments. Raises TypeError for an array that the kernel was not compiled for: it would read beyond it."""
    parts: list[Any] = []
    for letter, given in zip(letters, arguments, strict=True):
        if letter == _NUMBER:
            parts.append(given)
            continue
        dtype, dimensions = _KINDS[letter]
        if given.dtype != dtype or given.ndim != dimensions or not given.flags.c_contiguous:
            raise TypeError(
                f"an array of {dtype} with {dimensions} dimensions is needed, not of {given.dtype} with {given.ndim}"
            )
        where = given.__array_interface__["data"][0]
        parts += [None, None, given.size, given.itemsize, where, *given.shape, *given.strides]
    return parts


# --- the object files ---------------------------------------------------------------------------------------------------------


def _folders() -> list[Path]:
    """Where object files are kept that a worker has compiled, best first."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    return [*([Path(given)] if given else []), _HERE / "__pycache__"]


def existing(name: str) -> Path | None:
    """The object file of this name, if there is one."""
    return next((path for path in (folder / name for folder in (SHIPPED_FOLDER, *_folders())) if path.exists()), None)


def kept(name: str, code: bytes) -> Path | None:
    """Write an object file where that is possible."""
    for folder in _folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return write(folder, name, code)
        except OSError:
            continue
    return None


def write(folder: Path, name: str, code: bytes) -> Path:
    """Write an object file, at once whole: other workers may be looking for it."""
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as scratch:
        scratch.write(code)
    # A temporary file is its maker's alone; an image is built by one user and run by another.
    Path(scratch.name).chmod(0o644)
    return Path(scratch.name).rename(folder / name)
