"""Object files of the compiled loops that are put into memory here: all that are shipped, and what is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from shardherd.source.compiled import linking, machine_code
from shardherd.source.compiled.compiling import libraries
from shardherd.source.compiled.linking import UnlinkableError, load
from shardherd.source.compiled.machine_code import Library
from shardherd.source.compiled.processors import SHIPPED, Processor, here
from shardherd.source.decoding.compiled_records import KERNELS
from tests.harness.objects import objects
from tests.unit.source.kafka_bytes import Record, batch_of

NOTHING = "define void @f() {\n  ret void\n}\n"
TWO_BATCHES = np.frombuffer(batch_of([Record(7)]) + batch_of([Record(8), Record(9)]), np.uint8)


def object_file(code: str) -> bytes:
    """What LLVM makes of it, in the way that the loops are compiled."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(opt=0, reloc="pic", codemodel="small", jit=True)
    made: bytes = machine.emit_object(llvm.parse_assembly(code))
    return made


@pytest.mark.parametrize("processor", SHIPPED["x86_64"], ids=lambda each: each.name)
@pytest.mark.parametrize("library", libraries(), ids=lambda each: each.name)
def test_all_that_is_shipped_is_loaded_without_llvmlite(library: Library, processor: Processor) -> None:
    loaded = load((objects() / library.file_name(processor)).read_bytes())

    assert library.arguments.keys() <= loaded.addresses.keys()


def test_llvmlite_loads_what_cannot_be_linked_here_and_it_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(code: bytes) -> linking.Loaded:
        raise UnlinkableError("it is an ELF file of kind 1 for machine 183")

    monkeypatch.setattr(linking, "load", refused)
    by_llvmlite = machine_code._functions.__wrapped__(KERNELS)

    assert by_llvmlite.keys() == KERNELS.functions().keys()
    assert by_llvmlite["count_batches"](TWO_BATCHES) == KERNELS.functions()["count_batches"](TWO_BATCHES) == 2


def test_code_can_be_read_and_run_but_not_written() -> None:
    loaded = load((objects() / KERNELS.file_name(here())).read_bytes())

    address = loaded.addresses["scan"]
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    bounds = {tuple(int(each, 16) for each in line[0].split("-")): line[1] for line in lines}
    assert [rights for (begin, end), rights in bounds.items() if begin <= address < end] == ["r-xp"]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (b"MZ", "it is no ELF file of 64 bits"),
        (object_file(NOTHING)[:40], "it is cut off: unpack_from requires a buffer of .*"),
        (object_file(NOTHING)[:-40], "it is cut off: unpack_from requires a buffer of .*"),
        (
            object_file("declare i32 @puts(ptr)\ndefine i32 @f(ptr %a) {\n %r = call i32 @puts(ptr %a)\n ret i32 %r\n}\n"),
            "it needs puts",
        ),
        (
            object_file("@n = external global i64\ndefine i64 @f() {\n %r = load i64, ptr @n\n ret i64 %r\n}\n"),
            "it needs n",
        ),
    ],
)
def test_what_is_not_linked_here_is_refused_with_the_reason(code: bytes, why: str) -> None:
    with pytest.raises(UnlinkableError, match=f"^{why}$"):
        load(code)


def test_a_file_for_another_kind_of_machine_is_refused() -> None:
    code = bytearray((objects() / KERNELS.file_name(here())).read_bytes())
    struct.pack_into("<H", code, 18, 183)

    with pytest.raises(UnlinkableError, match=r"^it is an ELF file of kind 1 for machine 183$"):
        load(bytes(code))


def test_a_file_whose_parts_reach_beyond_it_is_refused() -> None:
    code = bytearray(object_file(NOTHING))
    (table,) = struct.unpack_from("<Q", code, 40)
    struct.pack_into("<Q", code, table + 64 + 32, len(code))  # the size of the first section that there is

    with pytest.raises(UnlinkableError, match=r"^it is cut off$"):
        load(bytes(code))


def test_a_reference_of_an_unknown_kind_is_refused() -> None:
    code = object_file("@n = global i64 7\ndefine i64 @f() {\n %r = load i64, ptr @n\n ret i64 %r\n}\n")

    with pytest.raises(UnlinkableError, match=r"^it has a reference of kind \d+$"):
        load(code)


def test_what_the_code_calls_and_its_own_numbers_are_found() -> None:
    """A call of the C library, a constant, and a number that is written to."""
    import ctypes

    loaded = load(
        object_file(
            """
@counted = internal global i64 40
@step = internal constant i64 2
declare ptr @memset(ptr, i32, i64)
define i64 @f(ptr %into) {
  %ignored = call ptr @memset(ptr %into, i32 7, i64 3)
  %before = load i64, ptr @counted
  %by = load i64, ptr @step
  %after = add i64 %before, %by
  store i64 %after, ptr @counted
  ret i64 %after
}
"""
        )
    )
    into = ctypes.create_string_buffer(5)
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(loaded.addresses["f"])

    assert [function(ctypes.addressof(into)), function(ctypes.addressof(into))] == [42, 44]
    assert into.raw == b"\7\7\7\0\0"
