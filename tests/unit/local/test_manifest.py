"""Manifest files become objects of the state folder, as `kubectl apply` makes them an API server's."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardherd.adapters.local.database import Database
from shardherd.adapters.local.machine import Backoff
from shardherd.adapters.local.node import FOLDER
from shardherd.adapters.local.objects import GROUP, Feed, Objects
from shardherd.cli import main
from shardherd.local.manifest import ManifestError, declare, documents, drop_others, scaled
from shardherd.local.schema import RefusedError
from tests.unit.local.manifests import Json, group


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[Objects]:
    database = Database(tmp_path / "state.db")
    yield Objects(database)
    database.close()


def written(folder: Path, *documents: Any) -> Path:
    path = folder / "group.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return path


def kept(objects: Objects, name: str = "clicks") -> Json:
    found = objects.get((GROUP, "shop", name))
    assert found is not None
    return found


def test_a_group_is_kept_with_its_defaults_its_folder_and_a_uid(objects: Objects, tmp_path: Path) -> None:
    declared = declare(objects, [written(tmp_path, group(replicas=2, scaling={"mode": "Fixed"}))], bootstrap="here:1")

    found = kept(objects)
    assert declared.groups == (("shop", "clicks"),)
    assert (found["spec"]["sessionTimeout"], found["spec"]["source"]["kafka"]["bootstrapServers"]) == ("45s", "here:1")
    assert (found["metadata"]["generation"], found["metadata"]["annotations"]) == (1, {FOLDER: str(tmp_path)})
    assert len(found["metadata"]["uid"]) == 36


def test_declared_again_it_is_the_same_group_with_another_generation(objects: Objects, tmp_path: Path) -> None:
    declare(objects, [written(tmp_path, group())])
    before = kept(objects)
    declare(objects, [written(tmp_path, group())])
    assert kept(objects) == before

    declare(objects, [written(tmp_path, group(paused=True))])

    after = kept(objects)
    assert (after["metadata"]["uid"], after["metadata"]["generation"]) == (before["metadata"]["uid"], 2)


def test_what_may_not_change_is_refused_and_nothing_is_changed(objects: Objects, tmp_path: Path) -> None:
    declare(objects, [written(tmp_path, group())])
    before = kept(objects)

    with pytest.raises(RefusedError, match="groupId cannot change"):
        declare(objects, [written(tmp_path, group(source={"kafka": {"groupId": "mine"}}))])

    assert kept(objects) == before


def test_secrets_and_config_maps_are_kept_and_other_kinds_are_named(objects: Objects, tmp_path: Path) -> None:
    secret = {"kind": "Secret", "metadata": {"name": "kafka", "namespace": "shop"}, "stringData": {"password": "hunter2"}}
    service = {"kind": "Service", "metadata": {"name": "web"}}
    path = written(tmp_path, group(), secret, service)

    declared = declare(objects, [path])

    found = objects.get(("Secret", "shop", "kafka"))
    assert found is not None
    assert base64.b64decode(found["data"]["password"]) == b"hunter2"
    assert "stringData" not in found
    assert declared.warnings[-1] == f"{path}: a Service named 'web' has no meaning on one machine and is left out"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: [", "is not YAML"),
        ("just a text", "a document is not an object but str: write apiVersion, kind, metadata"),
        ("kind: Secret\nmetadata: {name: a}\n", "no ConsumerGroup stands in"),
    ],
)
def test_a_file_that_is_no_manifest_is_refused(objects: Objects, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "group.yaml"
    path.write_text(text)
    with pytest.raises(ManifestError, match=said):
        declare(objects, [path])


WHOLE = """\
apiVersion: shardherd.dev/v1alpha1
kind: ConsumerGroup
metadata: {name: clicks, namespace: shop}
spec:
  source: {kafka: {bootstrapServers: "kafka:9092", topics: [clicks], endingTimestamp: 2026-01-31T12:00:00Z}}
  application: {image: "example/clicks:1", mainApplicationFile: /app.py}
"""


def test_a_time_without_quotes_is_the_text_that_it_is_for_kubectl(objects: Objects, tmp_path: Path) -> None:
    path = tmp_path / "group.yaml"
    path.write_text(WHOLE)

    declare(objects, [path])

    assert kept(objects)["spec"]["source"]["kafka"]["endingTimestamp"] == "2026-01-31T12:00:00Z"


SECRET = "kind: Secret\nmetadata: {name: kafka}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (WHOLE.replace("{name: clicks, namespace: shop}", ""), 'ConsumerGroup "" is invalid: metadata.name: Required value'),
        (WHOLE.replace("{name: clicks, namespace: shop}", "[clicks]"), 'metadata is ["clicks"]; write an object'),
        (WHOLE.replace("name: clicks, n", "name: 5, n"), "metadata.name is 5; write a text, in quotes"),
        (WHOLE.replace("namespace: shop", "namespace: {}"), "metadata.namespace is {}; write a text, in quotes"),
        (WHOLE.replace(": shop}", ": shop, labels: [a]}"), 'metadata.labels is ["a"]; write an object'),
        (
            WHOLE.replace(": shop}", ": shop, annotations: {shardherd.dev/pause-rebalance: true}}"),
            "metadata.annotations.shardherd.dev/pause-rebalance is true; write a text, in quotes",
        ),
        (
            WHOLE.replace("/app.py", '/app.py, env: ["A=b"]'),
            'spec.application.env[0]: Invalid value: "A=b": spec.application.env[0] in body must be of type object',
        ),
        (WHOLE.partition("spec:")[0] + "spec: kafka\n", 'spec: Invalid value: "kafka": spec in body must be of type object'),
        (
            WHOLE.partition("  source:")[0] + "  source: kafka\n",
            'spec.source: Invalid value: "kafka": spec.source in body must be of type object',
        ),
        (WHOLE.replace("/app.py", "!!binary aGk="), "spec.application.mainApplicationFile is b'hi'; write what JSON has"),
        (WHOLE.replace("/app.py", ".nan"), "spec.application.mainApplicationFile is nan; write what JSON has"),
        (WHOLE.replace("/app.py", '"\\ud800"'), 'spec.application.mainApplicationFile is "\\ud800"; write what JSON has'),
        (WHOLE.replace("/app.py", "{? [a] : b}"), "is not YAML: "),
        (WHOLE.replace("/app.py", "{1.5: b}"), "spec.application.mainApplicationFile has the name 1.5; write names as texts"),
        (WHOLE.replace("/app.py", "&a [*a]"), "is nested too deep, or contains itself; write it out"),
        (WHOLE.replace("/app.py", "[" * 5000), "is nested too deep, or contains itself; write it out"),
        (WHOLE.replace("/app.py", "9" * 5000), "is not YAML: "),
        (SECRET + "stringData: [a]\n", "stringData is of the type list; write an object"),
        (SECRET + "stringData: {port: 9092}\n", "stringData.port is of the type int; write a text, in quotes"),
        (SECRET + "data: a\n", "data is of the type str; write an object"),
        (
            SECRET + "data: {password: hunter2}\n",
            "data.password is not base64; write it so, or below stringData as it is",
        ),
        ("kind: ConfigMap\ndata: {}\n", "a ConfigMap without metadata.name: name it"),
        (
            SECRET.replace("Secret", "ConfigMap") + "binaryData: {app: print(1)}\n",
            "binaryData.app is not base64; write it so, or below data as it is",
        ),
        (SECRET.replace("Secret", "ConfigMap") + "binaryData: {app: 1}\n", "binaryData.app is 1; write a text, in quotes"),
        (SECRET + "stringData: {../a: b}\n", "stringData has the key '../a'; write letters, digits, '-', '_' and '.'"),
        (SECRET + "data: {..: Yg==}\n", "data has the key '..'; write letters, digits, '-', '_' and '.'"),
        (
            WHOLE.replace("namespace: shop", "namespace: ../shop"),
            "metadata.namespace is \"../shop\"; write at most 63 lowercase letters, digits and '-'",
        ),
    ],
)
def test_what_is_of_another_shape_is_refused_by_its_field(objects: Objects, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "group.yaml"
    path.write_text(text)
    with pytest.raises((ManifestError, RefusedError)) as refusal:
        declare(objects, [path], bootstrap="here:1")
    assert said in str(refusal.value)
    assert objects.all(GROUP) == []


def test_names_that_yaml_reads_as_something_else_are_the_texts_that_they_are_for_kubectl(
    objects: Objects, tmp_path: Path
) -> None:
    path = tmp_path / "group.yaml"
    path.write_text(f"{WHOLE}---\nkind: ConfigMap\nmetadata: {{name: a, namespace: shop}}\ndata: {{7: seven, on: two}}\n")

    declare(objects, [path])

    found = objects.get(("ConfigMap", "shop", "a"))
    assert found is not None
    assert found["data"] == {"7": "seven", "true": "two"}


def test_a_file_that_is_no_text_is_refused(objects: Objects, tmp_path: Path) -> None:
    path = tmp_path / "group.yaml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ManifestError, match=r"group\.yaml is not YAML: 'utf-8' codec can't decode"):
        declare(objects, [path])


def test_a_file_that_is_not_there_is_named(objects: Objects, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"nothing\.yaml cannot be read: No such file or directory"):
        declare(objects, [tmp_path / "nothing.yaml"])


def given(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Make this what stands in standard input."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))


def test_standard_input_is_a_manifest_whose_folder_is_the_one_that_it_is_read_in(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    notes = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "notes", "namespace": "shop"}, "data": {"a": "é"}}
    given(monkeypatch, yaml.safe_dump_all([notes, group()], allow_unicode=True).encode())

    assert declare(objects, [Path("-")]).groups == (("shop", "clicks"),)

    assert kept(objects)["metadata"]["annotations"] == {FOLDER: str(tmp_path)}
    found = objects.get(("ConfigMap", "shop", "notes"))
    assert found is not None
    assert found["data"] == {"a": "é"}


def test_messages_call_standard_input_by_its_name(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(data: bytes) -> str:
        given(monkeypatch, data)
        with pytest.raises(ManifestError) as error:
            declare(objects, [Path("-")])
        return str(error.value)

    assert refused(b"") == "no ConsumerGroup stands in standard input: add one, or name another file by -f"
    assert refused(b"\xff").startswith("standard input is not YAML: 'utf-8' codec can't decode")
    assert refused(b"a") == "standard input: a document is not an object but str: write apiVersion, kind, metadata"
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(ManifestError, match=r"^standard input is closed: name a file by -f$"):
        declare(objects, [Path("-")])


def test_a_number_is_set_where_the_mode_allows_it(objects: Objects, tmp_path: Path) -> None:
    declare(objects, [written(tmp_path, group(replicas=2, scaling={"mode": "External"}))])

    scaled(objects, "shop", "clicks", 5)

    assert kept(objects)["spec"]["replicas"] == 5
    with pytest.raises(RefusedError, match=r"spec\.replicas in body should be greater than or equal to 0"):
        scaled(objects, "shop", "clicks", -1)
    with pytest.raises(ManifestError, match="there is no ConsumerGroup 'views' in namespace 'shop'"):
        scaled(objects, "shop", "views", 1)


def test_a_group_that_is_declared_no_more_is_dropped(objects: Objects, tmp_path: Path) -> None:
    declare(objects, [written(tmp_path, group(), group("views"))])

    assert drop_others(objects, [("shop", "views")]) == ["shop/clicks"]

    assert [each["metadata"]["name"] for each in objects.all(GROUP)] == ["views"]


def test_the_feed_tells_of_what_is_new_changed_and_gone_once(objects: Objects, tmp_path: Path) -> None:
    feed, another = Feed(objects), Database(tmp_path / "state.db")

    def news() -> list[tuple[str, bool, bool]]:
        return [(kind, bool(body["spec"]["paused"]), gone) for kind, body, gone in feed.look()]

    declare(Objects(another), [written(tmp_path, group())])
    assert feed.changed_by_others()
    assert news() == [(GROUP, False, False)]
    assert not feed.changed_by_others()
    assert news() == []
    declare(Objects(another), [written(tmp_path, group(paused=True))])
    assert feed.changed_by_others()
    assert news() == [(GROUP, True, False)]
    drop_others(Objects(another), [])
    assert news() == [(GROUP, True, True)]
    another.close()


def test_a_group_made_again_under_its_name_is_told_as_gone_and_new(objects: Objects, tmp_path: Path) -> None:
    feed = Feed(objects)
    declare(objects, [written(tmp_path, group())])
    assert len(list(feed.look())) == 1
    drop_others(objects, [])
    declare(objects, [written(tmp_path, group())])

    assert [gone for _, _, gone in feed.look()] == [True, False]


def test_a_restart_waits_longer_each_time_up_to_a_limit() -> None:
    backoff = Backoff(first=1.0, most=60.0)
    assert [backoff.after(ends) for ends in (1, 2, 3, 6, 7, 8, 5000)] == [1.0, 2.0, 4.0, 32.0, 60.0, 60.0, 60.0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["status"], "is no state folder: start one with `shardherd local up`, or name another by --state"),
        (["down"], "is no state folder"),
        (["kill", "clicks-0"], "is no state folder"),
        (["logs", "clicks-0"], "is no state folder"),
        (["scale", "clicks", "2"], "is no state folder"),
        (["up"], "has no ConsumerGroup yet: name the manifest file by -f"),
        (["up", "-f", "nothing.yaml"], "nothing.yaml cannot be read"),
    ],
)
def test_a_command_that_cannot_be_done_says_why_and_what_to_do(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["local", arguments[0], "--state", str(tmp_path / "state"), *arguments[1:]]) == 1
    assert said in capsys.readouterr().err


def test_who_follows_a_log_reads_what_later_starts_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Database(tmp_path / "state.db").close()
    folder = tmp_path / "logs" / "shop" / "clicks-0"
    folder.mkdir(parents=True)
    (folder / "a.1.log").write_text("of the first\n")

    def last_words_and_another_start() -> None:
        with (folder / "a.1.log").open("a") as log:
            log.write("its last words\n")
        (folder / "a.2.log").write_text("of the second\n")

    def nobody_follows_any_more() -> None:
        raise KeyboardInterrupt

    steps = iter((last_words_and_another_start, nobody_follows_any_more))
    monkeypatch.setattr("time.sleep", lambda _seconds: next(steps)())

    assert main(["local", "logs", "clicks-0", "--follow", "--state", str(tmp_path)]) == 1
    assert capsys.readouterr().out == "of the first\nits last words\nof the second\n"


def test_of_two_consumers_with_one_name_the_namespace_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = Database(tmp_path / "state.db")

    def make(namespace: str) -> None:
        metadata = {"namespace": namespace, "name": "clicks-0", "uid": f"{namespace}-uid"}
        Objects(database).change(("Pod", namespace, "clicks-0"), lambda _: {"kind": "Pod", "metadata": metadata})

    for namespace in ("demo", "shop"):
        make(namespace)
        folder = tmp_path / "logs" / namespace / "clicks-0"
        folder.mkdir(parents=True)
        (folder / "a.1.log").write_text(f"of {namespace}\n")
    database.close()

    def said(*words: str) -> tuple[int, str, str]:
        return (main(["local", *words, "--state", str(tmp_path)]), *capsys.readouterr())

    several = "shardherd: 'clicks-0' is a consumer in demo, shop: name one by --namespace\n"
    assert said("logs", "clicks-0") == said("kill", "clicks-0") == (1, "", several)
    assert said("logs", "clicks-0", "-n", "demo") == (0, "of demo\n", "")
    ended = "shardherd: no process of 'clicks-0' runs now: see shardherd local status\n"
    assert said("kill", "clicks-0", "-n", "demo") == (1, "", ended)
    assert said("logs", "clicks-0", "-n", "no") == (1, "", "shardherd: 'clicks-0' has written nothing here\n")


def test_of_two_groups_with_one_name_the_namespace_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = Database(tmp_path / "state.db")

    def make(namespace: str) -> None:
        metadata = {"namespace": namespace, "name": "clicks", "uid": f"{namespace}-uid"}
        made = {"kind": "ConsumerGroup", "metadata": metadata, "spec": {}}
        Objects(database).change(("ConsumerGroup", namespace, "clicks"), lambda _: made)

    for namespace in ("shop", "demo"):
        make(namespace)
    database.close()

    assert main(["local", "scale", "clicks", "2", "--state", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "shardherd: 'clicks' is a group of demo, shop: name one by --namespace\n"


def test_commands_about_consumers_that_are_not_there_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state"
    state.mkdir()
    Database(state / "state.db").close()
    options = ["--state", str(state)]

    assert main(["local", "status", *options]) == 0
    assert capsys.readouterr().out.startswith("no operator runs\n")
    assert main(["local", "kill", *options, "clicks-0"]) == 1
    assert "there is no consumer 'clicks-0': see shardherd local status" in capsys.readouterr().err
    assert main(["local", "logs", *options, "clicks-0"]) == 1
    assert "'clicks-0' has written nothing here" in capsys.readouterr().err
    assert main(["local", "down", *options]) == 0


def test_a_name_that_is_there_twice_is_refused_and_one_that_overrides_what_is_merged_is_not(tmp_path: Path) -> None:
    file = tmp_path / "group.yaml"
    file.write_text("metadata: {name: a}\nspec:\n  scaling: {mode: Fixed}\n  replicas: 2\n  scaling: {mode: Lag}\n")
    with pytest.raises(ManifestError, match=r"'scaling' is there twice: leave one of them out\n.*line 5, column 3"):
        documents(file)
    file.write_text("metadata: {name: a}\nbase: &base {x: 1, y: 2}\nmore: &more {<<: *base, x: 3}\nspec: {<<: *more, x: 4}\n")
    (found,) = documents(file)
    assert (found["more"], found["spec"]) == ({"x": 3, "y": 2}, {"x": 4, "y": 2})
