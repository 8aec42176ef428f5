"""The site of docs/: its navigation names every page, no link is broken, it loads nothing from elsewhere."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from dev.site import BESIDE, DOCS, ROOT, expanded, named, rewritten


def built(folder: Path, docs: Path | None = None) -> Path:
    """The site, as `mkdocs build --strict` makes it; `Abort` if it warns of anything."""
    told = {"docs_dir": str(docs), "nav": None} if docs else {}
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True, **told))
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("site"))


def pages(site: Path) -> dict[str, str]:
    return {path.relative_to(site).as_posix(): path.read_text() for path in site.rglob("*.html")}


class TestNavigation:
    def test_it_names_every_page_once(self) -> None:
        nav = load_config(str(ROOT / "mkdocs.yml")).nav
        there = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
        assert sorted(named(expanded(nav))) == sorted([*there, *BESIDE.values()])

    def test_every_example_is_a_page_of_it_and_in_the_readme(self) -> None:
        examples = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("spark_apps/*/README.md")]
        assert sorted(each for each in BESIDE if each.startswith("spark_apps/")) == sorted(examples)
        readme = (ROOT / "README.md").read_text()
        assert [each for each in examples if f"]({each.removesuffix('/README.md')}" not in readme] == []

    def test_a_pattern_stands_for_the_pages_that_it_matches(self) -> None:
        ((_, decisions),) = expanded([{"Decisions": ["faq.md", "design/000*.md"]}])[0].items()
        assert [page.partition("-")[0] for page in decisions] == ["faq.md", *(f"design/000{number}" for number in range(1, 10))]


class TestSite:
    def test_it_is_made_without_a_warning_and_has_every_page(self, site: Path) -> None:
        expected = {path.relative_to(DOCS).with_suffix(".html").as_posix() for path in DOCS.rglob("*.md")}
        expected |= {str(Path(name).with_suffix(".html")) for name in BESIDE.values()}
        assert pages(site).keys() - {"404.html"} == expected

    def test_a_page_loads_nothing_from_elsewhere(self, site: Path) -> None:
        loading = re.compile(r"<(?:script|img|link|iframe|source|video|audio|object)\b[^>]*>")
        found = [tag for text in pages(site).values() for tag in loading.findall(text)]
        assert len(found) > 100
        assert [tag for tag in found if re.search(r'(?:src|href|data)="?(?:https?:)?//', tag)] == []
        styles = [path.read_text() for path in site.rglob("*.css")]
        assert [
            url for text in styles for url in re.findall(r"url\(([^)]*)\)|@import", text) if "//" in url.partition("data:")[0]
        ] == []
        # The theme's script would load what draws these.
        assert [name for name, text in pages(site).items() if 'class="mermaid"' in text] == []

    def test_nothing_of_a_page_is_left_as_it_was_written(self, site: Path) -> None:
        """Markdown that the forge understands, and the site does not."""
        left: list[tuple[str, str]] = []
        for name, text in pages(site).items():
            article = text.partition("<article")[2].partition("</article>")[0]
            prose = unescape(re.sub(r"<[^>]+>", "", re.sub(r"<(pre|code).*?</\1>", "", article, flags=re.DOTALL)))
            left += [(name, each) for each in re.findall(r"```|\]\(|\*\*|^\|.*\|$|^[*-] .*$", prose, re.MULTILINE)]
        assert left == []

    @pytest.mark.parametrize("link", ["missing.md", "page.md#missing", "../README.md#missing", "../operator/missing.py"])
    def test_a_link_that_leads_nowhere_fails_it(self, tmp_path: Path, link: str) -> None:
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs" / "page.md").write_text(f"# A page\n\nThis [leads]({link}).\n")
        with pytest.raises(Abort):
            built(tmp_path / "site", tmp_path / "docs")


class TestLinks:
    @pytest.mark.parametrize(
        ("name", "written", "site"),
        [
            ("faq.md", "[why](safety.md#faults)", "[why](safety.md#faults)"),
            ("faq.md", "[why](#below)", "[why](#below)"),
            ("faq.md", "[why](https://example.com/a.md)", "[why](https://example.com/a.md)"),
            ("faq.md", "[install](../README.md#install)", "[install](index.md#install)"),
            ("design/0001-an-instance-has-namespaces-of-its-own.md", "[how](../../README.md)", "[how](../index.md)"),
            ("design/0001-an-instance-has-namespaces-of-its-own.md", "[how](../safety.md)", "[how](../safety.md)"),
            ("index.md", "[faults](docs/safety.md#faults)", "[faults](safety.md#faults)"),
            ("index.md", "[an example](spark_apps/clickstream)", "[an example](clickstream.md)"),
            ("benchmarks.md", "[the table](table.py)", "[the table](https://forge.example.com/tree/benchmarks/table.py)"),
            ("faq.md", "[nowhere](../missing.py)", "[nowhere](../missing.py)"),
        ],
    )
    def test_it_leads_where_it_leads_on_the_forge(self, name: str, written: str, site: str) -> None:
        assert rewritten(written, name, "https://forge.example.com/tree/") == site

    def test_code_is_named_where_no_forge_is_known(self) -> None:
        said = rewritten("See [the table](../table.py) and [`LICENSE`](../LICENSE).", "design/page.md", "")
        assert said == "See [the table](../table.py) and [`LICENSE`](../LICENSE)."
        said = rewritten("See [the table](table.py) and [`LICENSE`](../LICENSE).", "benchmarks.md", "")
        assert said == "See the table (`benchmarks/table.py`) and `LICENSE`."

    def test_a_link_in_code_is_none(self) -> None:
        text = "`[a](docs/faq.md)` [`b`](docs/faq.md)\n\n```md\n[c](docs/faq.md)\n```\n[d](docs/faq.md) `e`"
        changed = "`[a](docs/faq.md)` [`b`](faq.md)\n\n```md\n[c](docs/faq.md)\n```\n[d](faq.md) `e`"
        assert rewritten(text, "index.md", "") == changed
