"""The environment of an application that is run by itself."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

import pytest

from shardherd.cli import main
from shardherd.local.alone import MISUSED, add_to, environment


def test_the_options_that_a_group_would_stand_for_are_in_the_environment(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    asked = given(
        f"--bootstrap here:1 --topic a --topic b --option startingOffsets=earliest --checkpoint {tmp_path}/check {app}"
    )
    found = environment(asked, {"HOME": "/root", "SHARDHERD_GROUP": "clicks"})

    options = json.loads(found.pop("SHARDHERD_ALONE"))
    assert options == {"kafka.bootstrap.servers": "here:1", "subscribe": "a,b", "startingOffsets": "earliest"}
    assert found == {
        "HOME": "/root",
        "SHARDHERD_CONSUMER": "app",
        "SHARDHERD_START": "1",
        "SHARDHERD_CHECKPOINT_PATH": str(tmp_path / "check"),
    }


def test_so_are_those_of_a_stream_of_kinesis() -> None:
    asked = given("--stream orders --region eu-central-1 --endpoint http://here --credentials /keys app.py")
    assert json.loads(environment(asked, {})["SHARDHERD_ALONE"]) == {
        "kinesis.stream": "orders",
        "kinesis.region": "eu-central-1",
        "kinesis.endpoint": "http://here",
        "kinesis.credentials": "/keys",
    }


def given(words: str) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser()
    add_to(parser.add_subparsers())
    return parser.parse_args(["run", *shlex.split(words)])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("app.py", "app.py is no file: name the application"),
        (f"{__file__}", f"{__file__} by itself has no group: give --bootstrap and --topic, or --stream"),
        (f"--region a {__file__}", "--region is of Kinesis: give --stream, or leave it out"),
        (f"--stream s --topic t {__file__}", "--stream is of Kinesis, and --topic of Kafka: leave out one of them"),
        ("--stream s --bootstrap k:1 m:C", "--stream is of Kinesis, and --bootstrap of Kafka: leave out one of them"),
        ("--bootstrap k:1 --topic t m:C", "--topic is of a Spark application, and m:C a processor: leave it out"),
        ("--checkpoint c m:C", "--checkpoint is of a Spark application, and m:C a processor: leave it out"),
        (
            f"--bootstrap k:1 --topic t --group a/b {__file__}",
            f"--group is of a worker, and {__file__} an application by itself: leave it out, or run its group by"
            " `shardherd local up`",
        ),
        (
            f"--bootstrap k:1 --topic t --group-uid u {__file__}",
            f"--group-uid is of a worker, and {__file__} an application by itself: leave it out, or run its group by"
            " `shardherd local up`",
        ),
        (
            f"{__file__} --bootstrap k:1 --topic=t",
            f"--bootstrap stands behind {__file__}, as if it were the application's own: write it before",
        ),
        (
            f"--bootstrap k:1 {__file__} --topic=t",
            f"--topic stands behind {__file__}, as if it were the application's own: write it before",
        ),
    ],
)
def test_what_does_not_go_together_is_named(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *shlex.split(words)]) == MISUSED
    assert capsys.readouterr().err == f"shardherd: {said}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing.py"], "shardherd: nothing.py is no file: name the application\n"),
        (["--option", "earliest", "nothing.py"], "shardherd: --option earliest has no value: write NAME=VALUE\n"),
        (["--option", "=earliest", "nothing.py"], "shardherd: --option =earliest has no name: write NAME=VALUE\n"),
        (["--option", "a=1", "--option", " =x", "m:C"], "shardherd: --option  =x has no name: write NAME=VALUE\n"),
    ],
)
def test_what_cannot_be_run_is_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--bootstrap", "here:1", "--topic", "a", *arguments]) == MISUSED
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--checkpoint", ""], "--checkpoint: '' is no folder: name one, for example checkpoint, or . for the one you are in"),
        (["--topic", ""], "--topic: '' has an empty name: name a topic, for example clicks"),
        (["--topic", " "], "--topic: ' ' has an empty name: name a topic, for example clicks"),
        (["--topic", "a", "--topic", "b,"], "--topic: 'b,' has an empty name: name a topic, for example clicks"),
    ],
)
def test_what_a_variable_that_is_not_set_leaves_empty_is_refused(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--bootstrap", "here:1", *given, __file__])
    assert (ended.value.code, capsys.readouterr().err.splitlines()[-1]) == (2, f"shardherd run: error: argument {said}")
