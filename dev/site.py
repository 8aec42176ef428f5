"""The site of docs/, as hooks of mkdocs: which pages of the repository stand beside those of docs/, and where links to them
lead.

mkdocs.yml names it, and `make docs` runs that. Pages are written for the forge, where a link may lead to any file of the
repository. In the site those to a page lead to that page of the site, also where it lies outside of docs/; those to code lead
to the forge if `extra.repository` says where that is, and are plain words with the path if not. It changes no file of the
repository.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BESIDE: Mapping[str, str] = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
    "spark_apps/clickstream/README.md": "clickstream.md",
    "spark_apps/clicks-python/README.md": "clicks-python.md",
    "spark_apps/orders-kinesis/README.md": "orders-kinesis.md",
    "spark_apps/outbox/README.md": "outbox.md",
    "spark_apps/sessions/README.md": "sessions.md",
    "spark_apps/joins/README.md": "joins.md",
    "spark_apps/enrich/README.md": "enrich.md",
    "spark_apps/lakehouse/README.md": "lakehouse.md",
    "spark_apps/running/README.md": "running.md",
    "spark_apps/countdown/README.md": "countdown.md",
}
"""Pages outside of docs/, by their path in the repository, and what they are called in the site."""
FROM: Mapping[str, str] = {name: path for path, name in BESIDE.items()}
PARTS = re.compile(r"^ *```.*?^ *```$|\[([^\]]*)\]\(([^)\s]+)\)|`[^`\n]+`", re.MULTILINE | re.DOTALL)
"""A block of code, a link, or code in a line, whichever begins first: a link in code is code."""


def expanded(nav: Any) -> Any:
    """The navigation with every pattern (`design/*.md`) in place of the pages that it matches."""
    if isinstance(nav, list):
        return [made for entry in nav for made in (matching(entry) if isinstance(entry, str) else [expanded(entry)])]
    if isinstance(nav, dict):
        return {title: expanded(below) for title, below in nav.items()}
    return nav


def matching(entry: str) -> list[str]:
    """The pages that one entry of the navigation stands for."""
    return sorted(path.relative_to(DOCS).as_posix() for path in DOCS.glob(entry)) if "*" in entry else [entry]


def named(nav: Any) -> Iterator[str]:
    """Every page that the navigation names."""
    if isinstance(nav, str):
        yield nav
    else:
        for below in nav.values() if isinstance(nav, dict) else nav:
            yield from named(below)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Called by mkdocs when it has read mkdocs.yml."""
    config.nav = expanded(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by mkdocs when it has found the pages of docs/."""
    for path, name in BESIDE.items():
        if files.get_file_from_path(name) is not None:
            raise ValueError(
                f"docs/{name} has the name that {path} has in the site: rename one of them (BESIDE of dev/site.py)"
            )
        files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Called by mkdocs with the text of each page."""
    return rewritten(markdown, page.file.src_uri, str(config.extra.get("repository") or ""))


def rewritten(text: str, name: str, repository: str) -> str:
    """The text of the page of that name in the site, with links that lead where they lead on the forge."""
    here = FROM.get(name, f"docs/{name}")

    def link(found: re.Match[str]) -> str:
        words, target = found.groups()
        if target is None:
            return found[0]
        path, hash_sign, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return found[0]
        there = os.path.normpath(PurePosixPath(here).parent / path)
        if site := BESIDE.get(there) or BESIDE.get(f"{there}/README.md") or below_docs(there):
            return f"[{words}]({os.path.relpath(site, PurePosixPath(name).parent)}{hash_sign}{anchor})"
        if not (ROOT / there).exists():
            return found[0]
        if repository:
            return f"[{words}]({repository.rstrip('/')}/{there}{hash_sign}{anchor})"
        return words if there in words else f"{words} (`{there}`)"

    return PARTS.sub(link, text)


def below_docs(path: str) -> str | None:
    """What a file of docs/ is called in the site. None: it is not there, or lies elsewhere."""
    return path.removeprefix("docs/") if path.startswith("docs/") and (ROOT / path).is_file() else None
