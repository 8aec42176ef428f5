"""The sums that seal a release."""

from __future__ import annotations

import subprocess
from pathlib import Path

from dev.release.checksums import write


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    """As the documentation tells users to do it."""
    command = ["sha256sum", "--check", "SHA256SUMS"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_every_file_has_its_sum_and_a_changed_one_is_found(tmp_path: Path) -> None:
    for name, text in {"b.whl": "wheel", "a.tgz": "chart"}.items():
        (tmp_path / name).write_text(text)
    sums = write(tmp_path)
    assert [line.split()[1] for line in sums.read_text().splitlines()] == ["a.tgz", "b.whl"]
    assert check(tmp_path).stdout == "a.tgz: OK\nb.whl: OK\n"

    (tmp_path / "b.whl").write_text("Wheel")
    assert check(tmp_path).returncode != 0
    assert check(tmp_path).stdout == "a.tgz: OK\nb.whl: FAILED\n"


def test_the_sums_do_not_change_when_they_are_written_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    assert write(tmp_path).read_text() == write(tmp_path).read_text()
