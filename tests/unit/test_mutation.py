"""What `make mutation` copies, so that the tests that it runs find all that they import."""

from __future__ import annotations

from dev.cluster.paths import REPOSITORY
from dev.mutation import copied, imported


def test_what_the_tests_import_of_other_folders_is_copied_with_them() -> None:
    files = copied()
    names = {str(file.relative_to(REPOSITORY)) for file in files}
    assert {"tests/builders.py", "tests/unit/core/test_fsm.py", "tests/unit/inspect/observations.py"} <= names
    assert {needed for file in files for needed in imported(file)} <= set(files)
    assert [file for file in files if not file.is_file()] == []
