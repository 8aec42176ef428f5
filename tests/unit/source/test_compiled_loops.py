"""The compiled loops: loaded without numba, kept where that is possible, and never called with what they are not made for."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from shardherd.source.compiled import machine_code
from shardherd.source.compiled.machine_code import Library, ending_with
from shardherd.source.compiled.processors import Processor, here
from shardherd.source.decoding import compiled_records
from shardherd.source.decoding import record_layout as layout
from shardherd.source.values import compiled_values
from tests.harness.objects import objects
from tests.unit.source.kafka_bytes import Record, batch_of, control_batch, empty_batch

OPERATOR = Path(__file__).parents[3] / "operator"
ANOTHER = Processor("other", "generic", frozenset())
DATA = np.frombuffer(batch_of([Record(7), Record(9)]), np.uint8)


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(OPERATOR), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_worker_loads_them_without_numba() -> None:
    objects()

    code = (
        "import sys, numpy, pyarrow; from shardherd.spark import reader;"
        "from shardherd.source.decoding import compiled_records;"
        "from shardherd.source.values.value_format import ValueFormat;"
        "print(compiled_records.count_batches(numpy.zeros(5, numpy.uint8)));"
        "json = ValueFormat('json', 'a string').decoder('UTC');"
        'print(json.decode(pyarrow.array([b\'{"a":"x"}\'])).values.to_pylist());'
        'schema = \'{"type":"record","name":"r","fields":[{"name":"a","type":"long"}]}\';'
        "avro = ValueFormat('avro', schema).decoder('UTC');"
        "print(avro.decode(pyarrow.array([b'\\x04'])).values.to_pylist());"
        "print('numba' in sys.modules)"
    )
    assert run(code).splitlines() == ["0", "[{'a': 'x'}]", "[{'a': 2}]", "False"]


@pytest.mark.parametrize("library", [*compiled_records.LIBRARIES, *compiled_values.LIBRARIES], ids=lambda library: library.name)
def test_a_library_has_what_is_called_and_depends_on_its_own_source(library: Library) -> None:
    assert library.functions().keys() == library.arguments.keys()
    others = {replace(library, sources=library.sources[:-1]).file_name(here()), library.file_name(ANOTHER)}
    assert len(others | {library.file_name(here())}) == 3


def test_the_object_file_lies_where_numbas_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = compiled_records.KERNELS.prepare()
    assert code is not None
    monkeypatch.setattr(machine_code, "_folders", lambda: [tmp_path / "new"])

    kept = machine_code.kept(code.name, code.read_bytes())
    monkeypatch.setattr(machine_code, "SHIPPED_FOLDER", tmp_path / "none")
    assert kept == machine_code.existing(code.name) == tmp_path / "new" / code.name
    assert [path.name for path in (tmp_path / "new").iterdir()] == [code.name]
    assert (tmp_path / "new" / code.name).stat().st_mode & 0o777 == 0o644, "an image is built by one user and run by another"


def test_without_a_folder_to_write_to_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(machine_code, "_folders", lambda: [tmp_path / "file" / "folder"])

    assert machine_code.existing("shardherd.o") is None
    assert machine_code.kept("shardherd.o", b"code") is None


def test_a_batch_is_found() -> None:
    table = np.zeros((compiled_records.count_batches(DATA) + 1, layout.BATCH_FIELDS), np.int64)

    assert compiled_records.scan(DATA, table) == 1
    assert table[0, [layout.BASE_OFFSET, layout.LAST_OFFSET, layout.COUNT, layout.END]].tolist() == [7, 9, 2, len(DATA)]


def test_the_last_row_says_how_many_batches_have_records_of_users_and_how_large_the_largest_is() -> None:
    parts = [control_batch(0), batch_of([Record(1), Record(2)]), empty_batch(3, 3), batch_of([Record(4)])]
    data = np.frombuffer(b"".join(parts), np.uint8)
    table = np.zeros((5, layout.BATCH_FIELDS), np.int64)

    assert compiled_records.scan(data, table) == 4
    assert table[-1, [layout.OF_USERS, layout.LARGEST]].tolist() == [2, max(len(each) for each in parts)]


def test_arguments_that_are_always_the_same_are_given_once() -> None:
    ends, data, into = np.array([0, 2, 5], np.int32), np.frombuffer(b"abcde", np.uint8), np.zeros(20, np.uint8)
    none_null = np.zeros(0, np.uint8)

    pack = ending_with(compiled_records.KERNELS.functions()["pack"], data, into)
    # As one, whose last arguments are these, and no longer what the caller calls so.
    del data

    assert pack(ends, none_null) == 5 + 5 + 2 + 5 + 3
    assert msgspec.msgpack.decode(into.tobytes()) == [b"ab", b"cde"]
    assert pack(ends[:2], none_null) == 5 + 5 + 2
    with pytest.raises(TypeError, match="an array of int32 with 1 dimensions is needed"):
        pack(ends.astype(np.int64), none_null)
    with pytest.raises(TypeError, match="an array of uint8 with 1 dimensions is needed"):
        ending_with(compiled_records.KERNELS.functions()["pack"], into.astype(np.int32))


@pytest.mark.parametrize(
    "table",
    [
        np.zeros((2, layout.BATCH_FIELDS), np.int32),
        np.zeros(2 * layout.BATCH_FIELDS, np.int64),
        np.zeros((layout.BATCH_FIELDS, 2), np.int64).T,
    ],
)
def test_an_array_of_another_kind_is_refused_before_it_is_touched(table: npt.NDArray[np.int64]) -> None:
    with pytest.raises(TypeError, match="an array of int64 with 2 dimensions is needed"):
        compiled_records.scan(DATA, table)
