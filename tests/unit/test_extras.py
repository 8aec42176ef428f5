"""What is installed with an extra is enough: for the source, for the operator, and for one machine without Kubernetes."""

from __future__ import annotations

import ast
import contextlib
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

ASKED_FOR = {
    "botocore": "aws",
    "deltalake": "delta",
    "gssapi": "kerberos",
    "opentelemetry": "tracing",
    "psycopg": "postgresql",
    "rich": "cli",
    "typer": "cli",
}
"""Packages that few need, with the extra that asks for them; who needs one and lacks it is told, as other tests show."""

PACKAGE = Path(__file__).resolve().parents[2] / "operator" / "shardherd"


def file_of(module: str) -> Path | None:
    """The file of a module of ours."""
    path = PACKAGE.parent.joinpath(*module.split("."))
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.exists()), None)


def imported(module: str) -> Iterator[str]:
    """Every module that this one of ours may import, also inside of its functions; what is for type checkers alone is not."""
    found = file_of(module)
    assert found is not None, module
    left: list[ast.AST] = [ast.parse(found.read_text())]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            left += node.orelse
            continue
        left += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            yield str(node.module)
            yield from (f"{node.module}.{name.name}" for name in node.names)


def others(*roots: str) -> set[str]:
    """The packages of others that these modules of ours may import, by themselves or by other modules of ours."""
    found: set[str] = set()
    seen: set[str] = set()
    left = list(roots)
    while left:
        module = left.pop()
        if module in seen:
            continue
        seen.add(module)
        for name in imported(module):
            top = name.partition(".")[0]
            if top != "shardherd":
                found.add(top)
            elif file_of(name) is not None:
                left.append(name)
    return found - sys.stdlib_module_names


def modules(folder: str) -> list[str]:
    """Every module of ours below this folder."""
    return [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in (PACKAGE / folder).rglob("*.py")
    ]


def normal(name: str) -> str:
    """A distribution's name as it is compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needs(distribution: str, extra: str = "") -> set[str]:
    """What a distribution asks for, with an extra too."""
    wanted = [each for each in metadata.requires(distribution) or () if "extra ==" not in each or f"'{extra}'" in each]
    return {normal(re.split(r"[^\w.-]", each)[0]) for each in wanted}


def installed(extra: str) -> set[str]:
    """The distributions that come with the project and this extra, also by way of others."""
    found: set[str] = set()
    left = needs("shardherd", extra)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            with contextlib.suppress(metadata.PackageNotFoundError):  # what another platform needs
                left |= needs(name)
    return found


@pytest.mark.parametrize(
    ("extra", "roots"),
    [
        ("spark", modules("spark")),
        ("worker", modules("worker")),
        ("operator", modules("cli")),
        ("cli", modules("inspect")),
        ("tracing", ["shardherd.telemetry.tracing", *modules("adapters/traces")]),
        ("local", [*modules("local"), *modules("adapters/local")]),
    ],
)
def test_an_extra_asks_for_all_that_its_modules_import(extra: str, roots: list[str]) -> None:
    providers = metadata.packages_distributions()
    packages = others(*roots) - (ASKED_FOR.keys() - {package for package, asked in ASKED_FOR.items() if asked == extra})
    wanted = {package: {normal(each) for each in providers[package]} for package in packages}

    assert len(wanted) > 2
    assert {package for package, distributions in wanted.items() if not distributions & installed(extra)} == set()


def test_an_operator_can_ask_the_brokers_without_the_extra_of_the_command_line() -> None:
    providers = metadata.packages_distributions()
    needed = others("shardherd.inspect.asking") - {"botocore", "gssapi"}
    assert {package for package in needed if not {normal(each) for each in providers[package]} & installed("operator")} == set()


@pytest.mark.parametrize(("package", "extra"), ASKED_FOR.items())
def test_what_few_need_has_an_extra_of_its_own(package: str, extra: str) -> None:
    # What is not installed here has the name of its distribution.
    distributions = {normal(each) for each in metadata.packages_distributions().get(package, [package])}
    assert needs("shardherd", extra) & distributions
    assert not distributions & (installed("spark") | installed("operator") | installed("local"))
