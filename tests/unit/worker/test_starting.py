"""`shardherd run module:Class`: what is found, what is refused, and what becomes of arguments."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from shardherd import cli
from shardherd.core.model.errors import ConsumerStoppedError
from shardherd.local import alone
from shardherd.local.alone import is_processor
from shardherd.telemetry import logs
from shardherd.worker import Options, Worker, WorkerOptionError, starting
from shardherd.worker.starting import UnknownProcessorError, find, listener_in, options_in

PROGRAM = """
from shardherd.worker import Listener, Processor

class Told(Listener):
    pass

class Clicks(Processor):
    def process(self, records, checkpoint):
        pass

class Needs(Told):
    def __init__(self, url):
        pass

class Inside:
    class Deep(Clicks):
        pass

NUMBER = 1
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with processors, in the folder where we are."""
    (tmp_path / "clicks_program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    for name in [each for each in os.environ if each.startswith("SHARDHERD_")]:
        monkeypatch.delenv(name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    monkeypatch.delitem(sys.modules, "clicks_program", raising=False)
    return "clicks_program"


def test_a_module_that_ends_the_process_where_it_is_imported_is_told_how_not_to(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script_program.py").write_text(f"import sys\nfrom {program} import *\nsys.exit(0)\n")
    monkeypatch.delitem(sys.modules, "script_program", raising=False)
    assert starting.main(["script_program:Clicks"]) == starting.MISUSED
    assert capsys.readouterr().err.splitlines()[-1] == (
        "shardherd: module script_program ends the process where it is imported, by SystemExit(0): put what it does as a script"
        ' under `if __name__ == "__main__":`'
    )


def test_a_processor_is_a_name_in_a_module_and_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a:b").touch()
    found = {name: is_processor(name) for name in ("clicks:Clicks", "a.b:C.D", "a:b", "app.py", "jobs/app.py", ":C", "a:")}
    assert [name for name, is_one in found.items() if is_one] == ["clicks:Clicks", "a.b:C.D"]


def test_a_class_is_found_in_the_folder_where_it_was_called(program: str) -> None:
    assert find(f"{program}:Clicks").__name__ == "Clicks"
    assert find(f"{program}:Inside.Deep").__name__ == "Deep"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("clicks_program:Other", "module clicks_program has no Other"),
        ("clicks_program:NUMBER", "clicks_program:NUMBER cannot be called"),
        ("no_such_program:Clicks", "there is no module no_such_program here"),
    ],
)
def test_what_is_not_there_is_named(program: str, name: str, why: str) -> None:
    with pytest.raises(UnknownProcessorError, match=why):
        find(name)


@pytest.mark.parametrize("name", [".clicks_program:Clicks", "clicks_program.py:Clicks", "jobs/clicks_program.py:Clicks"])
def test_a_file_in_the_place_of_a_module_is_named_with_the_remedy(program: str, name: str) -> None:
    with pytest.raises(UnknownProcessorError) as refused:
        find(name)
    assert str(refused.value) == f"a processor is named as module:Class, not {name!r}: write clicks_program:Clicks"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("from os import nothing_there", "ImportError: cannot import name 'nothing_there' from 'os'"),
        ("def x(:", "SyntaxError: invalid syntax (wrong_program.py, line 1)"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_with_its_error_and_where_its_own_code_failed(
    program: str, tmp_path: Path, code: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong_program.py").write_text(code)
    assert starting.main(["wrong_program:Clicks"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert f"shardherd: module wrong_program cannot be imported: {why}" in lines[-1]
    assert [line.split(", ")[0] for line in lines if line.startswith("  File")] == [f'  File "{tmp_path}/wrong_program.py"']


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["app.py"], "app.py is no file"),
        (["clicks_program:Clicks", "rows"], "a worker takes no arguments such as rows"),
        (["--group", "clicks", "clicks_program:Clicks"], "--group must be namespace/name, not clicks"),
        ([__file__], "by itself has no group: give --bootstrap and --topic"),
    ],
)
def test_what_makes_no_sense_on_the_command_line_is_refused(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", *words]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "variables", "why"),
    [
        ("Clicks", {}, "nobody has said where Kafka is"),
        ("Clicks", {"KAFKA_BOOTSTRAP_SERVERS": "k:1"}, "not set in the environment: SHARDHERD_COORDINATOR_URL"),
        ("Other", {}, "has no Other"),
        ("Clicks", {"WORKER_THREADS": "0"}, "threads must be 1 or more"),
        ("Clicks", {"WORKER_THREADS": "many"}, "SHARDHERD_WORKER_THREADS must be a whole number, not 'many'"),
        ("Clicks", {"WORKER_DRAIN_TIMEOUT": "inf"}, "drain_timeout must be a number of seconds, 0 or more, not inf"),
        ("Clicks", {"WORKER_SAVE_INTERVAL": "nan"}, "save_interval must be a number of seconds, 0 or more, not nan"),
        ("Clicks", {"WORKER_FAIL_ON_DATA_LOSS": "no"}, "SHARDHERD_WORKER_FAIL_ON_DATA_LOSS must be true or false, not 'no'"),
        ("Clicks", {"WORKER_STARTINGOFFSETS": "x"}, "SHARDHERD_WORKER_STARTINGOFFSETS names no option of a worker; they are"),
        ("Clicks", {"WORKER_KAFKA": '{"group.id": "x"}'}, "kafka.group.id has no meaning here"),
        (
            "Clicks",
            {"WORKER_LISTENER": "clicks_program:Clicks"},
            "SHARDHERD_WORKER_LISTENER must name a Listener, and clicks_program:Clicks has no on_assigned: derive it from",
        ),
        (
            "Clicks",
            {"WORKER_LISTENER": "clicks_program:Needs"},
            "SHARDHERD_WORKER_LISTENER names clicks_program:Needs, which is called without arguments, and needs url: give",
        ),
        (
            "Needs",
            {"KAFKA_BOOTSTRAP_SERVERS": "k:1"},
            "without arguments, and Needs needs url: give a function that knows them",
        ),
        ("Clicks", {"WORKER_LISTENER": "Told"}, "a listener is named as module:Class, not 'Told'"),
        ("Clicks", {"WORKER_KAFKA": "acks=all"}, "shardherd: SHARDHERD_WORKER_KAFKA must be a JSON object: Expecting value"),
        ("Clicks", {"WORKER_KAFKA": "[]"}, "shardherd: SHARDHERD_WORKER_KAFKA must be a JSON object, not list"),
    ],
)
def test_what_cannot_run_is_refused(
    program: str,
    name: str,
    variables: dict[str, str],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(f"SHARDHERD_{variable}", value)
    assert starting.main([f"{program}:{name}"]) == 2
    assert why in capsys.readouterr().err


def test_a_variable_names_a_listener(program: str) -> None:
    assert type(listener_in({"SHARDHERD_WORKER_LISTENER": f"{program}:Told"})).__name__ == "Told"
    assert listener_in({}) is None


def test_variables_are_options_of_their_kinds() -> None:
    names = {"THREADS": "2", "FETCH_INTERVAL": "0.2", "FAIL_ON_DATA_LOSS": "False", "DRAIN_TIMEOUT": "7"}
    assert options_in({f"SHARDHERD_WORKER_{name}": value for name, value in names.items()}) == Options(
        threads=2, fetch_interval=0.2, fail_on_data_loss=False, drain_timeout=7.0
    )


def test_the_command_line_becomes_the_environment_of_a_worker(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[tuple[list[str], dict[str, str]]] = []

    def become(command: list[str], variables: dict[str, str]) -> int:
        became.append((command, variables))
        return 0

    monkeypatch.setattr(alone, "_become", become)
    monkeypatch.setenv("SHARDHERD_ZONE", "a")
    words = "run --bootstrap k:1 --group streams/clicks --group-uid u --coordinator http://c --consumer clicks-0 --pod-uid p"
    words += (
        " --token-file /t --ca-file /ca --option threads=2 --option batch_size=7 --option kafka.isolation.level=read_committed"
    )
    assert cli.main([*words.split(), "--python", sys.executable, f"{program}:Clicks"]) == 0
    ((command, variables),) = became
    assert command == [sys.executable, "-m", "shardherd.worker", f"{program}:Clicks"]
    assert {name: value for name, value in variables.items() if name.startswith("SHARDHERD_")} == {
        "SHARDHERD_ZONE": "a",
        "SHARDHERD_KAFKA_BOOTSTRAP_SERVERS": "k:1",
        "SHARDHERD_WORKER_KAFKA": '{"isolation.level": "read_committed"}',
        "SHARDHERD_WORKER_THREADS": "2",
        "SHARDHERD_WORKER_BATCH_SIZE": "7",
        "SHARDHERD_NAMESPACE": "streams",
        "SHARDHERD_GROUP": "clicks",
        "SHARDHERD_GROUP_UID": "u",
        "SHARDHERD_COORDINATOR_URL": "http://c",
        "SHARDHERD_CONSUMER": "clicks-0",
        "SHARDHERD_POD_UID": "p",
        "SHARDHERD_TOKEN_FILE": "/t",
        "SHARDHERD_COORDINATOR_CA_FILE": "/ca",
    }


def test_a_run_that_is_over_otherwise_is_a_failure(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Any) -> None:
        raise ConsumerStoppedError("another run of clicks-0 has taken over")

    monkeypatch.setattr(Worker, "run", fail)
    monkeypatch.setenv("SHARDHERD_KAFKA_BOOTSTRAP_SERVERS", "k:1")
    assert starting.main([f"{program}:Clicks"]) == 1
    assert "the worker has ended: another run of clicks-0 has taken over" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bad_records": "drop"}, "bad_records must be one of hold, fail, skip, dead-letter, not 'drop'"),
        ({"tries": 3}, "tries says after how many tries bad_records is done, so both are set or none: tries is 3"),
        ({"bad_records": "skip"}, "so both are set or none: tries is 0 and bad_records 'skip'"),
        ({"bad_records": "dead-letter", "tries": 3}, "dead_letters is '' and bad_records 'dead-letter'"),
        ({"dead_letters": "bad"}, "dead_letters is 'bad' and bad_records 'hold'"),
        ({"max_pending": 0}, "max_pending must be 1 or more, not 0"),
        ({"ack_timeout": -1.0}, "ack_timeout must be 0 or more, not -1.0"),
    ],
)
def test_options_for_records_that_fail_are_refused_with_the_remedy_where_they_do_not_fit(
    given: dict[str, object], message: str
) -> None:
    with pytest.raises(WorkerOptionError, match=re.escape(message)):
        Options(**given)  # type: ignore[arg-type]


def test_a_variable_can_name_a_topic_of_dead_letters() -> None:
    variables = {"DEAD_LETTERS": "bad", "BAD_RECORDS": "dead-letter", "TRIES": "3", "IN_ORDER": "false"}
    options = options_in({f"SHARDHERD_WORKER_{name}": text for name, text in variables.items()})
    assert (options.dead_letters, options.bad_records, options.tries, options.in_order) == ("bad", "dead-letter", 3, False)
