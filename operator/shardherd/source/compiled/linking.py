"""Puts an object file of the compiled loops into memory, so that its functions can be called. `machine_code` calls it.

It decides where the parts of a file go, and what they refer to. It reads what `compiling` makes for x86-64 and Linux: code,
constants, and calls of a few functions of the C library. Anything else is an UnlinkableError, and llvmlite has to do it, which
takes 40 MB of memory. Nothing of another origin may be given to it: a call of what it has loaded runs that code.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

FROM_THE_PROCESS = ("memcpy", "memmove", "memset")
"""What the code may call beside itself."""

# https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html, and its supplement for x86-64.
_IDENT = b"\x7fELF\x02\x01\x01"
_RELOCATABLE, _X86_64 = 1, 62
_HEADER = struct.Struct("<HHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_SYMTAB, _RELA, _NOBITS, _UNWINDING = 2, 4, 8, 0x70000001
_WRITE, _ALLOCATED = 1, 2
_UNDEFINED, _COMMON = 0, 0xFFF2
_ABSOLUTE_64, _RELATIVE_32, _CALL_32 = 1, 2, 4

_JUMP = b"\xff\x25\x00\x00\x00\x00"
"""To the address that follows: the C library may be further away than a call of the code reaches."""


class UnlinkableError(ValueError):
    """An object file that is not of the kind that is linked here. Says why."""


@dataclass(frozen=True, slots=True)
class _Section:
    name: int
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    section: int
    value: int
    size: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """Functions in memory: where each is. The memory is given back with this object."""

    addresses: Mapping[str, int]
    memory: mmap.mmap


def load(code: bytes) -> Loaded:
    """Load an object file. Raises UnlinkableError, and OSError where memory must not be executed."""
    sections = _sections(code)
    symbols = _symbols(code, sections)
    # What is written to is on pages of its own: pages of code are not.
    readable, end = _places(sections, 0, writable=False)
    jumps = {}
    for each in symbols:
        if each.section == _UNDEFINED and each.name:
            jumps[each.name] = end = _aligned(end, 16)
            end += 16
    code_pages = _aligned(max(end, 1), mmap.PAGESIZE)
    writable, end = _places(sections, code_pages, writable=True)
    commons = {}
    for number, each in enumerate(symbols):
        if each.section == _COMMON:  # its value is its alignment
            commons[number] = end = _aligned(end, each.value)
            end += each.size
    memory = mmap.mmap(-1, max(end, code_pages), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    places = readable | writable
    for number, place in places.items():
        section = sections[number]
        if section.kind != _NOBITS:
            memory[place : place + section.size] = code[section.offset : section.offset + section.size]
    for name, place in jumps.items():
        memory[place : place + 16] = _JUMP + struct.pack("<Q", _of_the_process(name)) + b"\xcc\xcc"

    def address(number: int) -> int:
        symbol = symbols[number]
        if symbol.section == _UNDEFINED:
            return base + jumps[symbol.name]
        if symbol.section == _COMMON:
            return base + commons[number]
        if symbol.section not in places:
            raise UnlinkableError(f"{symbol.name or 'a reference'} is in section {symbol.section}, which is not loaded")
        return base + places[symbol.section] + symbol.value

    for section in sections:
        if section.kind == _RELA and section.info in places:
            _relocate(memory, base, places[section.info], code[section.offset : section.offset + section.size], address)
    _make_executable(base, code_pages)
    found = {each.name: base + places[each.section] + each.value for each in symbols if each.name and each.section in places}
    return Loaded(found, memory)


def _sections(code: bytes) -> list[_Section]:
    if code[: len(_IDENT)] != _IDENT:
        raise UnlinkableError("it is no ELF file of 64 bits")
    try:
        kind, machine, _, _, _, at, _, _, _, _, size, count, _ = _HEADER.unpack_from(code, 16)
        if (kind, machine, size) != (_RELOCATABLE, _X86_64, _SECTION.size):
            raise UnlinkableError(f"it is an ELF file of kind {kind} for machine {machine}")
        rows = [_SECTION.unpack_from(code, at + number * size) for number in range(count)]
    except struct.error as error:
        raise UnlinkableError(f"it is cut off: {error}") from error
    found = [_Section(row[0], row[1], row[2], row[4], row[5], row[6], row[7], row[8]) for row in rows]
    if any(each.kind not in (0, _NOBITS) and each.offset + each.size > len(code) for each in found):
        raise UnlinkableError("it is cut off")
    return found


def _symbols(code: bytes, sections: list[_Section]) -> list[_Symbol]:
    tables = [each for each in sections if each.kind == _SYMTAB]
    if len(tables) != 1:
        raise UnlinkableError(f"it has {len(tables)} tables of symbols")
    (table,) = tables
    names = sections[table.link]
    found = []
    for name, _, _, section, value, size in _SYMBOL.iter_unpack(code[table.offset : table.offset + table.size]):
        begin = names.offset + name
        found.append(_Symbol(code[begin : code.index(0, begin)].decode(), section, value, size))
    return found


def _places(sections: list[_Section], end: int, *, writable: bool) -> tuple[dict[int, int], int]:
    """Where each section begins that is there when the code runs, from `end` on; and where the last one ends.

    What unwinds the stack is left out: nothing in this code raises anything.
    """
    places = {}
    for number, each in enumerate(sections):
        if each.flags & _ALLOCATED and each.kind != _UNWINDING and bool(each.flags & _WRITE) is writable:
            places[number] = end = _aligned(end, each.alignment)
            end += each.size
    return places, end


def _aligned(place: int, alignment: int) -> int:
    step = max(alignment, 1)
    return (place + step - 1) // step * step


def _of_the_process(name: str) -> int:
    if name not in FROM_THE_PROCESS:
        raise UnlinkableError(f"it needs {name}")
    found = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    assert found is not None
    return found


def _relocate(memory: mmap.mmap, base: int, place: int, relocations: bytes, address: Callable[[int], int]) -> None:
    """Write into one section where what it refers to is now."""
    for offset, what, addend in _RELOCATION.iter_unpack(relocations):
        at, kind = place + offset, what & 0xFFFFFFFF
        target = address(what >> 32) + addend
        if kind == _ABSOLUTE_64:
            struct.pack_into("<Q", memory, at, target)
        elif kind in (_RELATIVE_32, _CALL_32):
            struct.pack_into("<i", memory, at, target - (base + at))
        else:
            raise UnlinkableError(f"it has a reference of kind {kind}")


def _make_executable(base: int, size: int) -> None:
    """From here on nothing can be written there."""
    process = ctypes.CDLL(None, use_errno=True)
    if process.mprotect(ctypes.c_void_p(base), ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_EXEC):
        error = ctypes.get_errno()
        raise OSError(error, f"code in memory cannot be made executable: {os.strerror(error)}")
