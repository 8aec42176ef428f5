"""The environment of an application that is run by itself."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from shardherd.cli import main
from shardherd.local.alone import MISUSED, environment


def test_the_options_that_a_group_would_stand_for_are_in_the_environment(tmp_path: Path) -> None:
    asked = argparse.Namespace(
        bootstrap="here:1", topic=["a", "b"], option=["startingOffsets=earliest"], application=tmp_path / "app.py",
        checkpoint=tmp_path / "check",
    )  # fmt: skip
    found = environment(asked, {"HOME": "/root", "SHARDHERD_GROUP": "clicks"})

    options = json.loads(found.pop("SHARDHERD_ALONE"))
    assert options == {"kafka.bootstrap.servers": "here:1", "subscribe": "a,b", "startingOffsets": "earliest"}
    assert found == {
        "HOME": "/root",
        "SHARDHERD_CONSUMER": "app",
        "SHARDHERD_START": "1",
        "SHARDHERD_CHECKPOINT_PATH": str(tmp_path / "check"),
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing.py"], "shardherd: nothing.py is no file: name the application\n"),
        (["--option", "earliest", "nothing.py"], "shardherd: --option earliest has no value: write NAME=VALUE\n"),
    ],
)
def test_what_cannot_be_run_is_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--bootstrap", "here:1", "--topic", "a", *arguments]) == MISUSED
    assert capsys.readouterr().err == said
