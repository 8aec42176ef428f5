"""Writes answers: as text, coloured on a terminal only, as JSON, or as YAML. Called by `commands`. Decides nothing."""

from __future__ import annotations

import json
import sys
from enum import StrEnum

from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.text import Text
from rich.theme import Theme

from shardherd.core.model.positions import exact
from shardherd.inspect.answers import Answer
from shardherd.inspect.values import json_of, yaml_of

THEME = Theme({"said.good": "green", "said.bad": "red", "said.moving": "yellow", "said.head": "bold", "said.none": "dim"})


class Output(StrEnum):
    """What `-o` may say."""

    TEXT = "text"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


class _Words(RegexHighlighter):
    """Colours words that say how something is. They say it without colours, too."""

    base_style = "said."
    highlights = (
        r"(?m)(?P<good>(?<=\s)(True|ALREADY_ALLOC|yes)(?=\s)|^ok\b)",
        r"(?m)(?P<bad>(?<=\s)(False|NOT_ALLOC)(?=\s)|^bad\b)",
        r"(?m)(?P<moving>(?<=\s)(Unknown|TRANSFER|WAIT)(?=\s)|^(unknown|note)\b)",
        r"(?m)(?P<head>^[A-Z][A-Z-]+(  +[A-Z][A-Z -]*)+$|^(Why|Where|How|Does) .*\?$)",
        r"(?m)(?P<none>^Not read: .*$)",
    )


def console(*, colour: bool | None = None, width: int | None = None, stderr: bool = False) -> Console:
    """Where answers are written: standard output, in colours if that is a terminal and NO_COLOR is not set.

    With `stderr` it is standard error: standard output has something else.
    """
    return Console(theme=THEME, highlight=False, soft_wrap=True, force_terminal=colour, width=width, stderr=stderr)


def styled(text: str) -> Text:
    """The text with its colours."""
    return _Words()(Text(text.rstrip("\n")))


def show(answer: Answer, output: Output, to: Console) -> None:
    """Write an answer."""
    if output is Output.JSON:
        to.out(json_of(answer.data), highlight=False)
    elif output is Output.YAML:
        to.out(yaml_of(answer.data, encoding=to.encoding).rstrip("\n"), highlight=False)
    else:
        to.print(styled(answer.text(wide=output is Output.WIDE)), soft_wrap=True)


def stream(value: object, output: Output) -> None:
    """Write one of many values as it comes: JSON as one line each, YAML as one document each."""
    if output is Output.JSON:
        print(json.dumps(exact(value)), flush=True)
    else:
        print(f"---\n{yaml_of(value, encoding=sys.stdout.encoding or 'utf-8')}".rstrip("\n"), flush=True)
