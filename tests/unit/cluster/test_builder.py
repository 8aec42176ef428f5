"""When an image is built anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.cluster import builder
from dev.cluster.tools import Tools


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that goes into the images, of a repository whose cache is empty. No image is really built."""
    for name, content in {"Dockerfile": "", ".dockerignore": "*\n!operator\n", "operator/app.py": "first"}.items():
        file = tmp_path / "repository" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    base = tmp_path / "base-1" / "root.tar"
    monkeypatch.setenv("SHARDHERD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(builder, "REPOSITORY", tmp_path / "repository")
    monkeypatch.setattr(Tools, "packages", None)
    monkeypatch.setattr(Tools, "base", base)
    monkeypatch.setattr(builder, "_ensure_base", lambda _: None)
    monkeypatch.setattr(builder, "image_id", lambda _: "an-image")
    return tmp_path / "repository" / "operator" / "app.py"


def test_what_was_changed_while_an_image_was_built_is_built_the_next_time(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    def build(target: str) -> None:
        built.append(f"{target} of {source.read_text()}")
        source.write_text("second")

    monkeypatch.setattr(builder, "_build", build)
    for _ in range(3):
        builder.build(("spark",))
    assert built == ["spark of first", "spark of second"]


@pytest.mark.usefixtures("source")
def test_the_base_is_made_here_and_not_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHARDHERD_PULL_BASE", raising=False)
    options = builder._options("operator")
    assert "--pull-never" in options
    assert "BASE=docker.io/library/debian:bookworm-slim" in options


@pytest.mark.usefixtures("source")
def test_an_image_with_extras_is_the_same_stage_under_a_tag_of_its_own() -> None:
    options = builder._options("worker-aws")
    assert options[options.index("--target") :][:6] == [
        "--target",
        "worker",
        "--tag",
        "docker.io/shardherd/worker:aws",
        "--build-arg",
        "EXTRAS=aws",
    ]
    assert not [each for each in builder._options("worker") if each.startswith("EXTRAS")]


def test_where_that_is_wanted_the_base_is_pulled_by_its_digest(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = f"debian:bookworm-slim@sha256:{'a' * 64}"
    (source.parents[1] / "Dockerfile").write_text(f"ARG BASE={base}\nFROM ${{BASE}} AS python\n")
    ensured: list[Path] = []
    built: list[list[str]] = []
    monkeypatch.setattr(builder, "_ensure_base", ensured.append)
    monkeypatch.setattr(builder, "_build", lambda target: built.append(builder._options(target)))

    builder.build(("operator",))
    monkeypatch.setenv("SHARDHERD_PULL_BASE", "1")
    builder.build(("operator",))
    builder.build(("operator",))

    assert len(ensured) == 1
    first, second = built  # another base is another image
    assert "--pull-never" in first
    assert f"BASE=docker.io/library/{base}" in second
    assert "--pull-never" not in second
