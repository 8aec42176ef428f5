"""What a release is of."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dev.release.source import ReleaseError, Source, read, working_tree

DATE = "2026-03-01T12:00:00+00:00"


def git(repository: Path, *arguments: str) -> str:
    who = ("-c", "user.name=who", "-c", "user.email=who@example.com")
    done = subprocess.run(
        ["git", *who, *arguments],
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "GIT_COMMITTER_DATE": DATE, "GIT_AUTHOR_DATE": DATE},
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One commit of a project of version 1.2.3."""
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "Begin")
    return tmp_path


def test_it_is_of_a_commit_and_as_old_as_that(repository: Path) -> None:
    source = read(repository, {})
    assert (source.version, source.revision) == ("1.2.3", git(repository, "rev-parse", "HEAD"))
    assert source.created == datetime.fromisoformat(DATE).astimezone(UTC)
    assert source.environment()["SOURCE_DATE_EPOCH"] == str(int(source.created.timestamp()))


def test_the_time_may_be_given_as_everywhere(repository: Path) -> None:
    assert read(repository, {"SOURCE_DATE_EPOCH": "1700000000"}).epoch == 1700000000


def test_files_that_are_not_committed_are_named(repository: Path) -> None:
    (repository / "more.txt").write_text("")
    with pytest.raises(ReleaseError, match=r"these files differ from [0-9a-f]{12}; commit them:\n\?\? more.txt"):
        read(repository, {})
    assert working_tree(repository, {}).version == "1.2.3"


def test_a_tag_of_another_version_is_refused(repository: Path) -> None:
    git(repository, "tag", "v1.2.4")
    with pytest.raises(ReleaseError, match=r"the commit has the tag v1.2.4, but pyproject.toml says version 1.2.3"):
        read(repository, {})
    git(repository, "tag", "v1.2.3")
    assert read(repository, {}).version == "1.2.3"


def test_without_a_repository_it_is_said_what_git_said(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    with pytest.raises(ReleaseError, match=r"`git rev-parse HEAD` ended with 128: .*not a git repository"):
        read(tmp_path, {})


def test_a_tree_that_is_no_checkout_can_be_tried_and_not_released(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    assert working_tree(tmp_path, {}) == Source(tmp_path, "1.2.3", "", 1_700_000_000)
    assert working_tree(tmp_path, {"SOURCE_DATE_EPOCH": "7"}).epoch == 7
