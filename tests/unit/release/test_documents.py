"""What the documentation names of a release is made by it, and nothing else is fetched of ours."""

from __future__ import annotations

import os
import re
from pathlib import Path

import shardherd
from dev.cluster.builder import TARGETS
from dev.release.images import file_name, name
from dev.release.source import working_tree

ROOT = Path(__file__).parents[3]
PAGES = (*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("*.md")))
SOURCE = working_tree(ROOT, os.environ)
MADE = {
    f"shardherd-{SOURCE.version}-py3-none-any.whl",
    f"shardherd-{SOURCE.version}.tar.gz",
    f"shardherd-{SOURCE.version}.tgz",
    f"shardherd-{SOURCE.version}.cdx.json",
    *(f"{file_name(SOURCE, target)}.{kind}" for target in TARGETS for kind in ("oci.tar", "cdx.json")),
}


def blocks(page: Path) -> str:
    """The commands of a page."""
    return "".join(re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))


def test_every_file_of_a_release_that_is_named_is_made() -> None:
    named = {page.name: set(re.findall(r"\bdist/([\w.-]*\w)", blocks(page))) for page in PAGES}
    assert {page for page, files in named.items() if files} >= {"README.md", "laptop.md", "install.md", "source.md"}
    assert {page: files - MADE for page, files in named.items() if files - MADE} == {}


def test_the_versions_are_one() -> None:
    assert shardherd.__version__ == SOURCE.version


def test_no_image_of_ours_is_pulled_from_where_none_is() -> None:
    """Ours are those that the reader has pushed, or loaded from the archives."""
    ours = {found for page in PAGES for found in re.findall(r"[\w./:-]*\bshardherd/(?:operator|spark)\b", blocks(page))}
    loaded = {name(SOURCE, target).rpartition(":")[0] for target in TARGETS}
    assert {each for each in ours if "example.com/" not in each and each not in loaded} == set()
