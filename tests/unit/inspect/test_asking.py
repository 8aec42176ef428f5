"""How the brokers of groups are asked, and with which credentials."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import yaml

from shardherd.adapters.kafka.connector import KafkaConnector
from shardherd.adapters.kafka.survey import Survey
from shardherd.cli import main
from shardherd.core.model.nouns import GroupSpec
from shardherd.inspect import asking, commands
from shardherd.local.schema import admitted
from shardherd.ports import SecretRefusedError, SecretUnavailableError, SourceUnavailableError
from tests.unit.inspect.observations import observed
from tests.unit.inspect.played import GROUPS, PlayedApi

INSIDE = "kubectl exec -n shardherd-system deployment/shardherd -- shardherd brokers -n shop"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> PlayedApi:
    """A cluster with one group that reads what is committed, and is 3 s behind."""
    api = PlayedApi()
    api.put(observed(spec={"source": {"kafka": {"isolationLevel": "ReadCommitted"}}}))
    group = api.objects[f"{GROUPS}/clicks"]
    api.objects[f"{GROUPS}/clicks"] = admitted(group) | {"metadata": group["metadata"], "status": group["status"]}
    monkeypatch.setattr(commands, "connect", lambda _kubeconfig, _context, **_: (api, "shop"))
    monkeypatch.setattr(asking, "connect", lambda _kubeconfig, _context: (api, "shop"))
    return api


class Answers:
    """What connectors are asked, and answer: a survey, or why there is none."""

    def __init__(self) -> None:
        self.asked: list[GroupSpec] = []
        self.refused = ""

    async def survey(self, _connector: KafkaConnector, spec: GroupSpec) -> Survey:
        self.asked.append(spec)
        if self.refused:
            raise SourceUnavailableError(self.refused)
        return Survey("4.1", 3)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    answers = Answers()
    monkeypatch.setattr(KafkaConnector, "survey", lambda connector, spec: answers.survey(connector, spec))
    return answers


@pytest.fixture
def checked(capsys: pytest.CaptureFixture[str]) -> Any:
    """The lines of a command about brokers: verdict and words, by what they are about; with its exit code."""

    def run(*words: str) -> tuple[int, dict[str, tuple[str, str]]]:
        code = main([*words, "-o", "json"])
        checks = json.loads(capsys.readouterr().out)["checks"]
        return code, {
            each["check"]: (each["verdict"], each["found"])
            for each in checks
            if "broker" in each["check"] or "producers" in each["check"]
        }

    return run


FOUND = ("ok", "3 brokers of Kafka 4.1 by what they serve")


def test_doctor_asks_the_brokers_only_if_it_is_told_to(api: PlayedApi, answers: Answers, checked: Any) -> None:
    operators = ("ok", "it answers the operator: 4 shards found.")
    _, found = checked("doctor")
    assert found == {
        "broker of shop/clicks": operators,
        "topics, producers": ("unknown", "the brokers were not asked: say --brokers"),
    }
    assert answers.asked == []

    _, found = checked("doctor", "--brokers")
    assert (found["broker of shop/clicks"], found["broker of shop/clicks, from here"]) == (operators, FOUND)
    (asked,) = answers.asked
    assert (asked.kafka.topics, asked.kafka.read_committed) == (("clicks",), True)


def test_who_cannot_reach_the_brokers_is_told_how_to_ask_from_inside(api: PlayedApi, answers: Answers, checked: Any) -> None:
    answers.refused = "no Kafka broker answers at kafka:9092"
    _, found = checked("doctor", "--brokers")
    assert found["broker of shop/clicks, from here"] == (
        "unknown",
        f"{answers.refused}; to ask from inside of the cluster: {INSIDE}",
    )
    # There it is bad.
    assert checked("brokers", "-n", "shop") == (3, {"broker of shop/clicks, from here": ("bad", answers.refused)})


def test_brokers_are_asked_for_one_group_or_for_all(
    api: PlayedApi, answers: Answers, checked: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (("brokers",), ("brokers", "clicks"), ("brokers", "-n", "shop", "clicks")):
        code, found = checked(*words)
        assert (code, found["broker of shop/clicks, from here"]) == (0, FOUND)
    assert main(["brokers"]) == 0
    assert capsys.readouterr().out.startswith("VERDICT  CHECK ")
    assert main(["brokers", "klicks"]) == 4
    assert capsys.readouterr().err.startswith("shardherd: there is no ConsumerGroup 'klicks' in namespace 'shop'")


def test_what_brokers_say_is_written_in_each_way_that_other_commands_have(
    api: PlayedApi, answers: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    def written(*words: str) -> str:
        assert main(["brokers", *words]) == 0
        return capsys.readouterr().out

    assert yaml.safe_load(written("-o", "yaml")) == json.loads(written("-o", "json"))
    assert written("-o", "wide") == written()


def test_who_waits_no_longer_for_the_brokers_sees_no_traceback(
    api: PlayedApi, answers: Answers, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(asking, "_one", interrupted)
    assert (main(["brokers"]), *capsys.readouterr()) == (130, "", "")


def test_an_empty_name_is_no_group_and_does_not_mean_all(
    api: PlayedApi, answers: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "shardherd: '' is no name of a ConsumerGroup: lower-case letters, digits and '-'\n"
    assert (main(["brokers", ""]), *capsys.readouterr()) == (2, "", said)
    assert answers.asked == []


def test_a_group_that_cannot_be_read_is_named(api: PlayedApi, answers: Answers, checked: Any) -> None:
    api.objects[f"{GROUPS}/clicks"] = {**observed().resource, "spec": {}}
    _, found = checked("doctor", "--brokers")
    verdict, said = found["broker of shop/clicks, from here"]
    assert (verdict, said.partition(":")[0]) == ("unknown", "ConsumerGroup shop/clicks cannot be read")


def test_a_group_of_another_source_has_no_brokers_to_ask(api: PlayedApi, answers: Answers, checked: Any) -> None:
    kinesis = {"source": {"kinesis": {"streamName": "orders", "region": "eu-central-1"}}}
    api.objects[f"{GROUPS}/clicks"] = {**observed().resource, "spec": kinesis}
    _, found = checked("doctor", "--brokers")
    assert "broker of shop/clicks, from here" not in found
    assert answers.asked == []


async def test_a_groups_secret_is_read_with_the_rights_of_who_asks() -> None:
    api = PlayedApi()
    path = "/api/v1/namespaces/shop/secrets/kafka"
    api.objects[path] = {"metadata": {}, "data": {"password": base64.b64encode(b"hunter2").decode()}}
    secrets = asking.OwnSecrets(api)  # type: ignore[arg-type]
    assert await secrets.read("shop", "kafka") == {"password": b"hunter2"}
    api.refused = {path: 403}
    with pytest.raises(SecretRefusedError, match=r"cannot be read with your rights \(the API server refused GET .* with 403\)"):
        await secrets.read("shop", "kafka")
    api.away = True
    with pytest.raises(SecretUnavailableError, match="no answer from the API server"):
        await secrets.read("shop", "kafka")
