"""The commands as a user types them, against an API server that is played."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from shardherd import cli
from shardherd.cli import main
from shardherd.inspect import COMMANDS, changes, commands, listing, printing
from shardherd.inspect.cluster import Cluster
from shardherd.inspect.coordinator import Coordinator
from shardherd.inspect.observed import InspectError, Observed
from tests.unit.inspect.observations import WALL, live, observed, pod, record, resource, seen
from tests.unit.inspect.played import GROUPS, PlayedApi
from tests.unit.local.manifests import group

STATUS = (
    "GROUP        READY  SHARDS  ASSIGNED  CONSUMERS  LAG  WHY\n"
    "shop/clicks  True   4       4         2/2        70   2 consumers read 4 shards.\n"
)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> PlayedApi:
    """A cluster whose namespace `shop`, that of the kubeconfig's context, has one group."""
    api = PlayedApi()
    api.put(observed())
    monkeypatch.setattr(commands, "connect", lambda _kubeconfig, _context, **_: (api, "shop"))
    return api


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    """What a command line says: its exit code, output and errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.mark.parametrize("given", ["-1", "nan", "inf", "1e300"])
def test_a_wait_that_is_none_is_refused_before_anything_is_done(given: str, api: PlayedApi, said: Any) -> None:
    shown = "1e+300" if given == "1e300" else given
    assert said("top", "--interval", given) == (
        2,
        "",
        f"shardherd: --interval is {shown}: write seconds from 0 to 1000000, for example 2\n",
    )
    assert said("offsets", "reset", "clicks", "--to", "Latest", "--dry-run", "--timeout", given) == (
        2,
        "",
        f"shardherd: --timeout is {shown}: write seconds from 0 to 1000000, for example 30\n",
    )
    assert api.requests == []


def test_looking_sends_nothing_but_get(api: PlayedApi, said: Any) -> None:
    looks = (
        ("status",), ("status", "clicks"), ("shards", "clicks"), ("lag", "clicks"), ("explain", "clicks"),
        ("explain", "clicks", "clicks/0"), ("offsets", "get", "clicks"), ("rebalance", "clicks", "--dry-run"),
        ("top", "clicks", "--count", "1"), ("top", "--count", "1"),
    )  # fmt: skip
    for look in looks:
        code, out, err = said(*look)
        assert (code, err, bool(out)) == (0, "", True), look
    assert {method for method, _ in api.requests} == {"GET"}


def test_status_is_a_table_json_or_yaml(api: PlayedApi, said: Any) -> None:
    assert said("status") == (0, STATUS, "")
    assert said("status", "-A") == (0, STATUS, "")
    (listed,) = json.loads(said("status", "-o", "json")[1])
    assert (listed["name"], listed["lag"]["records"]) == ("clicks", 70)
    assert yaml.safe_load(said("status", "-o", "yaml")[1]) == [listed]
    assert "REASON" in said("status", "-o", "wide")[1]
    api.objects.clear()
    assert said("status") == (0, "No groups.\n", "")


def test_a_group_is_read_from_what_is_stored(api: PlayedApi, said: Any) -> None:
    api.put(observed((record(0, "clicks-0"), record(1, "clicks-0", to="clicks-1"))))
    code, out, _ = said("shards", "clicks", "--only", "TRANSFER")
    assert (code, out.splitlines()[:2]) == (
        0,
        [
            "SHARD     STATE     HOLDER    NEXT      EPOCH  POSITION  END  LAG  VERDICT  SINCE",
            "clicks/1  TRANSFER  clicks-0  clicks-1  2      101       -    -    -        -",
        ],
    )


def test_what_may_not_be_read_is_said_and_the_rest_is_shown(api: PlayedApi, said: Any) -> None:
    api.refused = dict.fromkeys((f"/api/v1/namespaces/shop/{kind}" for kind in ("pods", "events", "configmaps")), 403)
    code, out, err = said("shards", "clicks")
    assert (code, err) == (0, "")
    assert out == (
        "No shards are known yet. Ready: 2 consumers read 4 shards.\n"
        "\n"
        "Not read: who holds which shard: cannot read the ownership of group shop/clicks: the API server refused GET"
        " /api/v1/namespaces/shop/configmaps/clicks-state with 403\n"
        "Not read: pods: the API server refused GET /api/v1/namespaces/shop/pods with 403\n"
        "Not read: events: the API server refused GET /api/v1/namespaces/shop/events with 403\n"
    )


def test_errors_name_what_why_and_the_remedy(api: PlayedApi, said: Any) -> None:
    assert said("shards", "klicks") == (
        4,
        "",
        "shardherd: there is no ConsumerGroup 'klicks' in namespace 'shop', where there are: clicks; name another"
        " namespace by -n\n",
    )
    assert said("shards", "clicks", "-A") == (
        2,
        "",
        "shardherd: a group is named, and -A means all namespaces: name its namespace by -n\n",
    )
    assert said("rebalance", "clicks") == (
        2,
        "",
        "shardherd: the operator rebalances by itself whenever there is something to move: say --dry-run\n",
    )
    api.refused = {GROUPS: 403}
    assert said("status") == (
        1,
        "",
        f"shardherd: you may not get consumergroups in namespace 'shop' (the API server refused GET {GROUPS} with"
        f" 403): ask for the"
        " role `view` there, or name another by -n\n",
    )
    api.refused = {GROUPS: 404}
    assert said("status")[2].startswith("shardherd: the cluster knows no ConsumerGroups (")
    api.refused = {GROUPS: 500}
    assert said("status")[2] == f"shardherd: the API server refused GET {GROUPS} with 500\n"
    api.away = True
    assert said("status") == (
        1,
        "",
        "shardherd: no cluster: no answer from the API server; check --context and --kubeconfig, and the way to the"
        " API server\n",
    )


def test_no_kubeconfig_is_no_cluster(said: Any, tmp_path: Path) -> None:
    none = tmp_path / "none"
    problem = (
        f"shardherd: no cluster: there is no kubeconfig {none}; name a kubeconfig by --kubeconfig or KUBECONFIG, and its"
        " context by --context"
    )
    assert said("status", "--kubeconfig", str(none)) == (
        1,
        "",
        f"{problem}, or look at this machine's groups by --local\n",
    )
    # It has the options that it names, and has no --local.
    assert said("brokers", "--kubeconfig", str(none), "--context", "a") == (1, "", f"{problem}\n")


def test_a_kubeconfigs_context_says_which_cluster_and_namespace(tmp_path: Path) -> None:
    from shardherd.inspect.cluster import connect

    file = tmp_path / "config"
    contexts = [
        {"name": name, "context": {"cluster": "c", "user": "u", **more}}
        for name, more in (("a", {}), ("b", {"namespace": "shop"}))
    ]
    document = {
        "apiVersion": "v1", "kind": "Config", "current-context": "a", "contexts": contexts,
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }  # fmt: skip
    file.write_text(yaml.safe_dump(document))
    assert [connect(file, context)[1] for context in (None, "a", "b")] == ["default", "default", "shop"]
    with pytest.raises(InspectError, match="no cluster: "):
        connect(file, "c")


def test_a_pause_and_its_end_are_patches(api: PlayedApi, said: Any) -> None:
    paused = "shop/clicks is paused: micro-batches end and are checkpointed, then nothing is read until it is resumed\n"
    assert said("pause", "clicks") == (0, paused, "")
    assert api.objects[f"{GROUPS}/clicks"]["spec"]["paused"] is True
    assert said("pause", "clicks")[1] == "shop/clicks is paused already: nothing was changed\n"
    assert said("resume", "clicks") == (0, "shop/clicks is resumed\n", "")
    assert [method for method, _ in api.requests].count("PATCH") == 2
    api.refused = {f"{GROUPS}/clicks": 403}
    assert said("pause", "clicks")[0] == 1


def test_a_drain_labels_the_pod(api: PlayedApi, said: Any) -> None:
    drained = "clicks-1 is to give up its 2 shards and gets none, until `drain --undo` or its pod is replaced\n"
    assert said("drain", "clicks", "clicks-1") == (0, drained, "")
    labels = api.objects["/api/v1/namespaces/shop/pods/clicks-1"]["metadata"]["labels"]
    assert labels["shardherd.dev/cordoned"] == "true"
    assert said("drain", "clicks", "clicks-1", "--undo") == (0, "clicks-1 takes shards again\n", "")
    assert "shardherd.dev/cordoned" not in api.objects["/api/v1/namespaces/shop/pods/clicks-1"]["metadata"]["labels"]
    assert said("drain", "clicks", "clicks-9")[0] == 4
    code, _, err = said("drain", "clicks", "clicks-1")
    assert code == 0
    api.refused = {}
    api.objects["/api/v1/namespaces/shop/pods/gone"] = pod("clicks-0")
    del api.objects["/api/v1/namespaces/shop/pods/clicks-0"]
    code, _, err = said("drain", "clicks", "clicks-0")
    assert (code, err) == (1, "shardherd: the API server refused GET /api/v1/namespaces/shop/pods/clicks-0 with 404\n")


def test_a_reset_is_declared_and_its_plan_is_waited_for(api: PlayedApi, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"id": "r", "state": "Planned", "message": "A dry run.", "shards": 1, "rows": [{"shard": "clicks/0", "after": 0}]}

    def operate(_seconds: float) -> None:
        api.objects[f"{GROUPS}/clicks"]["status"]["reset"] = told

    monkeypatch.setattr(commands, "LOOK", 0.0)
    monkeypatch.setattr("shardherd.inspect.commands.time.sleep", operate)
    assert said("offsets", "reset", "clicks", "--to", "Earliest", "--id", "r", "--dry-run") == (
        0,
        "Planned: A dry run.\n1 shard; 0 records are read again, 0 are not read.\n\nSHARD     BEFORE  AFTER\nclicks/0"
        "  -       0\n",
        "",
    )
    assert api.objects[f"{GROUPS}/clicks"]["spec"]["reset"] == {"id": "r", "dryRun": True, "to": "Earliest"}
    refused = "shardherd: say either --dry-run, which changes no position, or --execute\n"
    assert said("offsets", "reset", "clicks", "--to", "Earliest") == (2, "", refused)
    assert said("offsets", "reset", "clicks", "--to", "Latest", "--execute")[0] == 1
    assert said("offsets", "reset", "clicks", "--to", "Latest", "--dry-run", "--timeout", "0") == (
        3,
        "The operator has not answered yet: it stays declared, and is planned once it does.\n",
        "",
    )


def test_doctor_reads_the_cluster_and_ends_with_3_if_something_is_bad(api: PlayedApi, said: Any) -> None:
    api.objects["/apis/shardherd.dev/v1alpha1"] = {"resources": []}
    lease = "/apis/coordination.k8s.io/v1/namespaces/ops/leases/shardherd"
    api.objects[lease] = {
        "spec": {"holderIdentity": "a_b", "leaseDurationSeconds": 15, "renewTime": "2023-11-14T22:13:10.000000Z"}
    }
    api.objects["/api/v1/namespaces/ops/services/https:shardherd:8443/proxy/readyz"] = {}
    code, out, err = said("doctor", "--operator-namespace", "ops", "-o", "json")
    checks = {each["check"]: each["verdict"] for each in json.loads(out)["checks"]}
    assert (code, err) == (3, "")
    assert checks == {
        "API server": "ok",
        "ConsumerGroup defined": "ok",
        "definition's fields": "unknown",
        **{f"{verb} {name}": "ok" for verb, _, name, _, _ in commands_rights()},
        "clock": "bad",
        "leader": "bad",
        "operators": "bad",
        "coordinator": "bad",
        "shop/clicks": "ok",
        "broker of shop/clicks": "ok",
        "topics, producers": "unknown",
    }
    posts = {path for method, path in api.requests if method != "GET"}
    assert posts == {
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    }


def commands_rights() -> tuple[tuple[str, str, str, str, bool], ...]:
    from shardherd.inspect.cluster import RIGHTS

    return RIGHTS


def test_a_cluster_at_the_same_time_is_not_late() -> None:
    api = PlayedApi()
    examined = Cluster(api, "shop", now=lambda: WALL + 1).examined("ops", "shardherd")  # type: ignore[arg-type]
    assert (examined.clock, examined.lease, examined.pods, examined.groups) == (1.0, None, (), ())
    services = "/api/v1/namespaces/ops/services"
    api.refused = {f"{services}/https:": 503}
    api.objects[f"{services}/http:shardherd:8080/proxy/readyz"] = {}
    assert Cluster(api, "shop").examined("ops", "shardherd").coordinator == "{}"  # type: ignore[arg-type]
    api.refused = {services: 503}
    assert str(Cluster(api, "shop").examined("ops", "shardherd").coordinator).endswith("8443/proxy/readyz with 503")  # type: ignore[arg-type]
    api.away = True
    assert Cluster(api, "shop").examined("ops", "shardherd").server is None  # type: ignore[arg-type]


def test_a_report_is_written_without_secrets(api: PlayedApi, said: Any, tmp_path: Path) -> None:
    file = tmp_path / "clicks.tar.gz"
    code, out, err = said("report", "clicks", "-f", str(file))
    assert (code, err) == (0, "")
    assert out.splitlines()[1] == "secrets are removed; look at what applications said in errors before you send it"
    with tarfile.open(file) as tar:
        texts = [(tar.extractfile(each) or io.BytesIO()).read() for each in tar.getmembers()]
    assert len(texts) == 11
    assert not any(b"hunter2" in text for text in texts)
    assert said("report", "clicks", "-f", str(tmp_path / "no" / "folder")) == (
        1,
        "",
        f"shardherd: --file {tmp_path / 'no' / 'folder'} cannot be written: No such file or directory\n",
    )


def test_a_report_is_written_to_standard_output_and_what_is_said_of_it_to_standard_error(
    api: PlayedApi, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = main(["report", "clicks", "-f", "-"])
    out, err = capsysbinary.readouterr()
    with tarfile.open(fileobj=io.BytesIO(out)) as tar:
        names = sorted(name.removeprefix("shardherd-clicks/") for name in tar.getnames())
    said = f"wrote standard output: {', '.join(names)}\n"
    beware = "secrets are removed; look at what applications said in errors before you send it\n"
    assert (code, err.decode(), list(tmp_path.iterdir())) == (0, said + beware, [])


def test_a_report_is_not_written_to_a_terminal(api: PlayedApi, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert (said("report", "clicks", "-f", "-"), api.requests) == (
        (
            2,
            "",
            "shardherd: --file - is a terminal, which shows no archive: pipe it, for example to `tar tz`, or name a file\n",
        ),
        [],
    )


def test_render_prints_what_would_be_created(said: Any, tmp_path: Path) -> None:
    file = tmp_path / "group.yaml"
    file.write_text(yaml.safe_dump(group()))
    code, out, _ = said("render", "-f", str(file), "--shards", "8")
    found = list(yaml.safe_load_all(out))
    assert (code, [each["kind"] for each in found]) == (0, ["Service", "PodDisruptionBudget", "StatefulSet"])
    assert found[2]["spec"]["replicas"] == 2
    assert json.loads(said("render", "-f", str(file), "--shards", "8", "-o", "json")[1])["items"] == found
    assert said("render", "-f", str(tmp_path / "no.yaml"))[0] == 1


def test_render_prints_what_would_be_created_of_each_file(said: Any, tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(yaml.safe_dump(group()))
    second.write_text(yaml.safe_dump({**group(), "metadata": {"name": "orders"}}))

    found = [said("render", "-f", str(each))[1] for each in (first, second)]

    assert said("render", "-f", str(first), "-f", str(second)) == (0, "---\n".join(found), "")


def test_render_reads_standard_input_as_kubectl_does(said: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "group.yaml"
    file.write_text(yaml.safe_dump(group()))
    with file.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        found = said("render", "-f", "-")
        assert found == said("render", "-f", str(file))
        # It has been read.
        nothing = "shardherd: no ConsumerGroup stands in standard input: add one, or name another file by -f\n"
        assert said("render", "-f", "-") == (1, "", nothing)


def test_top_goes_on_while_the_cluster_is_away_and_until_it_is_stopped(
    api: PlayedApi, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def wait(seconds: float) -> None:
        looks.append(seconds)
        api.away = True
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("shardherd.inspect.commands.time.sleep", wait)
    code, out, _ = said("top", "--interval", "7")
    assert (code, looks) == (0, [7.0, 7.0, 7.0])
    row, *away = [line for line in out.splitlines() if line.startswith(("shop/", "shardherd:"))]
    assert (row, [line[:22] for line in away]) == (STATUS.splitlines()[1], ["shardherd: no cluster:"] * 2)
    assert said("top")[0] == 1


def test_top_streams_values_one_look_after_the_other(api: PlayedApi, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(_seconds: float) -> None:
        api.away = not api.away

    monkeypatch.setattr("shardherd.inspect.commands.time.sleep", wait)
    code, out, err = said("top", "-o", "json", "--count", "3")
    looks = [json.loads(line) for line in out.splitlines()]
    assert (code, err, [sorted(look) for look in looks]) == (0, "", [["groups", "time"], ["error", "time"], ["groups", "time"]])
    assert looks[0]["groups"][0]["name"] == "clicks"
    assert looks[1]["error"].startswith("no cluster: ")

    (look,) = [json.loads(line) for line in said("top", "clicks", "-o", "json", "--count", "1")[1].splitlines()]
    assert look["group"] == json.loads(said("status", "clicks", "-o", "json")[1])
    assert look["lag"] == json.loads(said("lag", "clicks", "-o", "json")[1])
    documents = list(yaml.safe_load_all(said("top", "clicks", "-o", "yaml", "--count", "2")[1]))
    assert [sorted(each) for each in documents] == [["group", "lag", "time"], ["error", "time"]]


def test_every_command_of_groups_gives_values_where_they_are_asked_for(
    api: PlayedApi, said: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shardherd.inspect.browsing.until_interrupted", lambda: None)
    service = "/api/v1/namespaces/shardherd-system/services/http:shardherd-page:8082"
    api.objects[f"{service}/proxy/document.json"] = {"format": 1}
    file = tmp_path / "clicks.tar.gz"
    asked: dict[str, tuple[str, ...]] = {
        "status": (), "shards": ("clicks",), "lag": ("clicks",), "explain": ("clicks",), "pause": ("clicks",),
        "resume": ("clicks",), "drain": ("clicks", "clicks-1"), "offsets": ("get", "clicks"),
        "rebalance": ("clicks", "--dry-run"), "doctor": (), "page": (), "top": ("--count", "1"),
        "report": ("clicks", "-f", str(file)),
    }  # fmt: skip
    found = {}
    for name, words in asked.items():
        code, out, err = said(name, *words, "-o", "json")
        found[name] = json.loads(out)
        assert (code, err) == (3 if name == "doctor" else 0, ""), name
        # The same again, as YAML: what was changed is changed no more, and what is a time is another.
        again = yaml.safe_load(said(name, *words, "-o", "yaml")[1])
        assert again.keys() == found[name].keys() if isinstance(again, dict) else again == found[name], name
    paused, drained, report = (found[name] for name in ("pause", "drain", "report"))
    assert (paused["group"], paused["paused"], paused["changed"]) == ("shop/clicks", True, True)
    assert (drained["consumer"], drained["drained"], drained["shards"]) == ("clicks-1", True, 2)
    assert (report["group"], report["file"], len(report["contents"])) == ("shop/clicks", str(file), 11)
    assert found["page"]["url"].startswith("http://127.0.0.1:")
    # What prints no values has an option of its own, or none at all.
    assert asked.keys() == COMMANDS.keys() - {"render", "completion"}


def test_the_coordinator_needs_a_token_and_a_cluster(api: PlayedApi, said: Any) -> None:
    assert said("shards", "clicks", "--api", "http://127.0.0.1:1") == (
        2,
        "",
        "shardherd: --api needs --token-file: `kubectl create token ACCOUNT --audience shardherd` makes a token\n",
    )
    assert said("doctor", "--local")[:1] == (2,)


def test_a_coordinator_that_does_not_answer_hides_nothing_else(api: PlayedApi, said: Any, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("of-somebody\n")
    asked = ("--api", "http://127.0.0.1:1", "--token-file", str(token))
    code, out, err = said("shards", "clicks", *asked)
    assert (code, err, out.splitlines()[1].split()[0]) == (0, "", "clicks/0")
    assert out.splitlines()[-1].startswith(
        "Not read: ends and lags of shards: the coordinator does not answer at http://127.0.0.1:1"
    )
    assert said("drain", "clicks", "clicks-1", *asked)[0] == 0


@pytest.mark.parametrize("url", ["https://[::1", "localhost:8443", "https://", "ftp://here"])
def test_what_is_no_address_of_a_coordinator_is_refused(api: PlayedApi, said: Any, url: str) -> None:
    told = f"shardherd: --api is {url!r}: write a URL such as https://localhost:8443\n"
    assert said("shards", "clicks", "--api", url, "--token-file", "token") == (2, "", told)


def test_who_may_not_list_pods_is_not_told_that_there_is_no_such_consumer(api: PlayedApi, said: Any) -> None:
    api.refused = {"/api/v1/namespaces/shop/pods": 403}
    assert said("drain", "clicks", "clicks-1") == (
        1,
        "",
        "shardherd: which consumers group shop/clicks has could not be read: pods: the API server refused GET"
        " /api/v1/namespaces/shop/pods with 403\n",
    )


def test_a_reset_is_not_mixed_with_one_that_somebody_else_declares_meanwhile(
    api: PlayedApi, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{GROUPS}/clicks"
    theirs = {"id": "theirs", "to": "Offsets", "dryRun": True, "offsets": {"clicks/1": 0}}
    decide, looks = changes.resetting, []

    def meanwhile(observed: Observed, reset: changes.Reset) -> changes.Patch:
        looks.append(observed)
        if len(looks) == 1:
            api.call("PATCH", path, {"spec": {"reset": theirs}})
        return decide(observed, reset)

    monkeypatch.setattr(changes, "resetting", meanwhile)
    said("offsets", "reset", "clicks", "--offset", "clicks/0=5", "--id", "ours", "--dry-run", "--timeout", "0")
    assert api.objects[path]["spec"]["reset"] == {"id": "ours", "to": "Offsets", "dryRun": True, "offsets": {"clicks/0": 5}}
    assert len(looks) == 2


def test_a_resource_that_changes_all_the_time_is_left_alone(api: PlayedApi, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    decide, path = changes.resetting, f"{GROUPS}/clicks"

    def meanwhile(observed: Observed, reset: changes.Reset) -> changes.Patch:
        api.call("PATCH", path, {"status": {"lag": {"records": 1}}})
        return decide(observed, reset)

    monkeypatch.setattr(changes, "resetting", meanwhile)
    code, _, err = said("offsets", "reset", "clicks", "--to", "Latest", "--dry-run")
    assert (code, err[:61]) == (1, "shardherd: somebody else changed it at the same time (the API")
    assert "reset" not in api.objects[path]["spec"]


def test_a_name_that_cannot_be_one_gets_into_no_path(api: PlayedApi, said: Any) -> None:
    assert said("status", "../pods/x") == (
        2, "", "shardherd: '../pods/x' is no name of a ConsumerGroup: lower-case letters, digits and '-'\n",
    )  # fmt: skip
    assert api.requests == []


@pytest.mark.parametrize(
    "words",
    [
        ("status", "-n"),
        ("status", "clicks", "-n"),
        ("doctor", "--operator-namespace"),
        ("page", "--operator-namespace"),
        ("render", "-f", "group.yaml", "-n"),
    ],
    ids=" ".join,
)
def test_a_namespace_that_cannot_be_is_refused_before_anything_is_asked(
    words: Sequence[str], api: PlayedApi, said: Any
) -> None:
    for name in ("A B", "../pods", "shop?a=b"):
        refused = f"shardherd: {name!r} is no name of a namespace: lower-case letters, digits and '-'\n"
        assert said(*words, name) == (2, "", refused)
    assert api.requests == []


@pytest.mark.parametrize(
    "url",
    [
        *("shardherd:8443", "ftp://shardherd", "http://", "http://[::", "https://shardherd:99999"),
        *("https://shard herd", "https://shardherd:8443\n", "https://shard\therd", "https://shardherd\x1b[31m"),
    ],
)
def test_a_url_that_cannot_be_called_is_refused(url: str, api: PlayedApi, said: Any) -> None:
    rendered = f"shardherd: --url is {url!r}: write a URL such as https://shardherd.shardherd-system.svc:8443\n"
    assert said("render", "-f", "group.yaml", "--url", url) == (2, "", rendered)
    asked = f"shardherd: --api is {url!r}: write a URL such as https://localhost:8443\n"
    assert said("shards", "clicks", "--api", url, "--token-file", "token") == (2, "", asked)


def test_a_terminal_obeys_nothing_that_an_application_wrote(api: PlayedApi, said: Any) -> None:
    said_by_a_pod = {
        "type": "Ready",
        "status": "False",
        "reason": "Odd",
        "lastTransitionTime": "-",
        "message": "a\x1b]0;b\x07c\nd",
    }
    api.put(observed(status={"conditions": [said_by_a_pod]}))
    assert "Ready      False   Odd     -      a ]0;b c d\n" in said("status", "clicks")[1]


def test_a_kubeconfig_that_is_no_yaml_is_named(said: Any, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("a: [")
    code, out, err = said("status", "--kubeconfig", str(file))
    assert (code, out, err[:37]) == (1, "", "shardherd: the kubeconfig is no YAML:")
    assert err.endswith("; name another by --kubeconfig or KUBECONFIG\n")


def test_no_source_has_more_shards_than_can_be_planned_for(said: Any) -> None:
    code, out, err = said("render", "-f", "group.yaml", "--shards", "99999999999999999999")
    assert (code, out, "'--shards'" in err) == (2, "", True)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[]", b"hello"])
def test_a_kubeconfig_that_is_none_is_named(content: bytes, said: Any, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_bytes(content)
    code, out, err = said("status", "--kubeconfig", str(file))
    assert (code, out, err[:35]) == (1, "", "shardherd: the kubeconfig is none (")
    assert err.endswith("): name another by --kubeconfig or KUBECONFIG\n")


def test_a_kubeconfig_that_cannot_be_read_is_named(said: Any, tmp_path: Path) -> None:
    assert said("status", "--kubeconfig", str(tmp_path)) == (
        1,
        "",
        f"shardherd: the kubeconfig {tmp_path} cannot be read (Is a directory): name another by --kubeconfig or KUBECONFIG\n",
    )


def test_colours_are_for_terminals_only(api: PlayedApi) -> None:
    def shown(colour: bool) -> str:
        to = printing.console(colour=colour, width=20)
        with to.capture() as found:
            printing.show(listing.groups([resource()]), printing.Output.TEXT, to)
        return found.get()

    assert shown(False) == STATUS
    assert "\x1b[32mTrue\x1b[0m" in shown(True)
    assert Console(force_terminal=True).is_terminal


def test_the_command_line_lists_every_command_and_says_what_is_wrong(said: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    help_text = capsys.readouterr().out
    assert [name for name in COMMANDS if f"\n    {name} " not in help_text] == []
    known = {each.name for each in commands.app.registered_commands} | {each.name for each in commands.app.registered_groups}
    assert known == COMMANDS.keys()
    code, _, err = said("status", "--no-such-option")
    assert (code, "No such option: --no-such-option" in err) == (2, True)
    assert said("shards")[0] == 2


def test_words_are_completed_in_shells_and_by_kubectl(
    api: PlayedApi, said: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for shell in ("bash", "zsh", "fish"):
        code, out, _ = said("completion", shell)
        assert (code, "_SHARDHERD_COMPLETE" in out) == (0, True)
    before = dict(os.environ)

    def completed(*words: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["kubectl_complete-shardherd", *words])
        assert cli.complete() == 0
        os.environ.clear()
        os.environ.update(before)
        return capsys.readouterr().out.split()

    assert completed("sta") == ["status", ":4"]
    assert completed("shards", "cl") == ["clicks", ":4"]
    api.away = True
    assert completed("shards", "") == [":4"]


def test_a_missing_package_is_named_with_its_extra(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "shardherd.inspect.commands")
    monkeypatch.delattr("shardherd.inspect.commands", raising=False)
    assert said("status") == (
        1,
        "",
        "shardherd: this command needs the package typer: install shardherd with its extra `cli`\n",
    )


def test_the_plugin_calls_itself_as_it_is_called(
    api: PlayedApi, said: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/kubectl-shardherd", "status", "--help"])
    assert main() == 0
    assert "Usage: kubectl shardherd status [OPTIONS] [GROUP]\n" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["/usr/bin/kubectl-shardherd", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out.startswith("usage: kubectl shardherd ")


def test_a_pod_that_is_not_the_groups_is_no_consumer_of_it(api: PlayedApi, said: Any) -> None:
    stranger: Mapping[str, Any] = pod("clicks-7", labels={"shardherd.dev/role": "executor"})
    api.objects["/api/v1/namespaces/shop/pods/clicks-7"] = dict(stranger)
    assert said("drain", "clicks", "clicks-7") == (
        4,
        "",
        "shardherd: 'clicks-7' is no consumer of group shop/clicks: there are clicks-0, clicks-1\n",
    )


PAGE = Path(__file__).resolve().parents[3] / "docs" / "command-line.md"
TYPED = [line for line in PAGE.read_text().splitlines() if line.startswith("shardherd ")]


@pytest.mark.parametrize("line", TYPED)
def test_every_command_of_the_page_does_what_it_says(
    line: str, api: PlayedApi, said: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stop(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shardherd.inspect.commands.time.sleep", stop)
    monkeypatch.setattr("shardherd.inspect.browsing.until_interrupted", lambda: None)
    service = "/api/v1/namespaces/shardherd-system/services/http:shardherd-page:8082"
    api.objects[f"{service}/proxy/document.json"] = {"format": 1}
    monkeypatch.setattr(Coordinator, "view", lambda _self, _group: live(seen(0, "clicks-0", lag=50)))
    monkeypatch.chdir(tmp_path)
    Path("consumergroup.yaml").write_text(yaml.safe_dump(group()))
    words = line.split()[1:]
    if words[0] == "resume":
        said("pause", "clicks")
    if words[-1] == "--undo":
        said(*words[:-1])
    # Nobody answers a reset here; that the API server takes it is an integration test.
    answered = {"doctor": 3, "offsets": 3 if words[1:2] == ["reset"] else 0}
    code, out, err = said(*words, *(("--timeout", "0") if words[:2] == ["offsets", "reset"] else ()))
    assert (code, err, bool(out)) == (answered.get(words[0], 0), "", True)
    assert words[0] != "report" or Path("shardherd-clicks.tar.gz").exists()
    assert "--api" not in words or "clicks/0  ALREADY_ALLOC  clicks-0  -     1      100       150  50" in out


def test_the_page_has_every_command() -> None:
    assert {line.split()[1] for line in TYPED} | {"completion"} == COMMANDS.keys()
    assert "source <(shardherd completion bash)" in PAGE.read_text()
