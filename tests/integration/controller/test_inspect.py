"""The command line on a real API server: what a user with the role `view` is told, and what one with more may change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardherd.adapters.kubernetes.ownership import ConfigMapOwnership
from shardherd.cli import main
from shardherd.core.group import ownership
from shardherd.core.group.records import ConsumerRecord, GroupRecord, Ownership, PositionCopies, ShardRecord
from shardherd.core.model.nouns import ConsumerId, GroupIdentity, Incarnation, ShardId, ShardState
from tests.harness.cluster import Names
from tests.integration.controller.bench import GROUPS, ControllerBench
from tests.integration.controller.test_controller import play

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def name(names: Names, bench: ControllerBench) -> str:
    """A group of two consumers, both ready, that hold two shards: one moves from the first to the second."""
    name = names.fresh("seen")
    play(bench, name, 2)
    bench.group(name)
    for pod in bench.until_pods(name, 2):
        bench.make_ready(pod["metadata"]["name"])
    bench.until_condition(name, "ConsumersReady", "True", "AllReady")
    uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in bench.pods(name)}
    identity = GroupIdentity(bench.namespace, name, bench.get(GROUPS, name)["metadata"]["uid"])
    asyncio.run(_store(bench, identity, uids))
    return name


async def _store(bench: ControllerBench, identity: GroupIdentity, uids: dict[str, str]) -> None:
    first, second = (ConsumerId(f"{identity.name}-{number}") for number in range(2))
    runs = {consumer: Incarnation(uids[consumer], 1) for consumer in (first, second)}
    held = ShardRecord(ShardId("clicks/0"), ShardState.ALREADY_ALLOC, 0, True, first, runs[first], owner_epoch=1)
    moving = ShardRecord(ShardId("clicks/1"), ShardState.TRANSFER, 0, True, first, runs[first], second, owner_epoch=2)
    stored = Ownership(
        GroupRecord(identity.uid, 1, 4, 9, discovered=True),
        {held.shard: held, moving.shard: moving},
        {consumer: ConsumerRecord(consumer, run) for consumer, run in runs.items()},
    )
    store = ConfigMapOwnership(bench.api)
    await store.save(identity, ownership.dumps(stored), None)
    await store.save_copies(identity, PositionCopies({held.shard: 40, moving.shard: 50}), "")


def kubeconfig_of(bench: ControllerBench, file: Path, role: str) -> Path:
    """A kubeconfig of an account that has this role of Kubernetes' own in the namespace, and nothing else."""
    account = f"user-{role}"
    bench.kubectl("create", "serviceaccount", account)
    bench.kubectl("create", "rolebinding", account, f"--clusterrole={role}", f"--serviceaccount={bench.namespace}:{account}")
    token = bench.kubectl("create", "token", account).strip()
    config = yaml.safe_load(bench.cluster.kubeconfig.read_text())
    config["users"] = [{"name": account, "user": {"token": token}}]
    context = next(each for each in config["contexts"] if each["name"] == config["current-context"])
    context["context"] |= {"user": account, "namespace": bench.namespace}
    file.write_text(yaml.safe_dump(config))
    return file


@pytest.fixture(scope="module")
def configs(bench: ControllerBench, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("kubeconfigs")
    return {role: kubeconfig_of(bench, folder / role, role) for role in ("view", "edit")}


@pytest.fixture
def said(configs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> Say:
    """What a command says to a user with this role."""

    def run(role: str, *arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--kubeconfig", str(configs[role])])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_the_role_view_suffices_to_look(bench: ControllerBench, name: str, said: Say) -> None:
    code, out, err = said("view", "shards", name)
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()[1:3]] == [
        ["clicks/0", "ALREADY_ALLOC", f"{name}-0", "-", "1", "40", "-", "-", "-", "-"],
        ["clicks/1", "TRANSFER", f"{name}-0", f"{name}-1", "2", "50", "-", "-", "-", "-"],
    ]
    assert "Not read" not in out

    code, out, _ = said("view", "status", name)
    assert code == 0
    assert ["ConsumersReady", "True", "AllReady"] in [line.split()[:3] for line in out.splitlines()]
    assert [f"{name}-1", "yes", "0", "running", "-"] in [line.split() for line in out.splitlines()]

    code, out, _ = said("view", "explain", name, "-o", "json")
    answers = json.loads(out)["answers"]
    assert (code, answers[0]["question"], answers[0]["reason"]) == (0, "Why 2 consumers (2 ready)?", "FollowingShards")

    _, out, _ = said("view", "explain", name, "clicks/1")
    assert f"NotGivenUp: {name}-0 has not given it up yet; {name}-1 is to have it\n" in out

    assert said("view", "rebalance", name, "--dry-run")[1].startswith("The assignor Sticky would move 0 shards of 2.\n")
    assert said("view", "lag", name)[0] == 0


def test_who_may_not_change_is_told_so_and_who_may_changes(bench: ControllerBench, name: str, said: Say) -> None:
    code, out, err = said("view", "pause", name)
    assert (code, out) == (1, "")
    assert err.startswith(
        f"shardherd: you may not patch consumergroups in namespace '{bench.namespace}' (the API server refused "
    )
    assert err.endswith("): ask for the role `edit` there, or name another by -n\n")

    assert said("edit", "pause", name)[0] == 0
    assert bench.get(GROUPS, name)["spec"]["paused"] is True
    assert said("edit", "resume", name)[0] == 0
    assert bench.get(GROUPS, name)["spec"]["paused"] is False


def test_a_dry_run_of_a_reset_is_valid_to_the_api_server_also_after_another(
    bench: ControllerBench, name: str, said: Say
) -> None:
    for options in (
        ("--offset", "clicks/0=7"),
        ("--offset", "clicks/1=8"),
        ("--to", "2026-01-31T12:00:00Z"),
        ("--to", "Latest"),
    ):
        code, out, err = said("edit", "offsets", "reset", name, *options, "--dry-run", "--timeout", "0")
        # The coordinator of this bench is played, and plans nothing.
        assert (code, out, err) == (
            3,
            "The operator has not answered yet: it stays declared, and is planned once it does.\n",
            "",
        )
    reset = bench.get(GROUPS, name)["spec"]["reset"]
    assert {key: value for key, value in reset.items() if key != "id"} == {"to": "Latest", "dryRun": True}


def test_doctor_knows_the_definition_and_the_rights_and_says_what_it_may_not_see(
    bench: ControllerBench, name: str, said: Say, configs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    def verdicts(config: Path) -> dict[str, str]:
        main(
            [
                "doctor",
                "-n",
                bench.namespace,
                "--kubeconfig",
                str(config),
                "--operator-namespace",
                bench.namespace,
                "-o",
                "json",
            ]
        )
        return {each["check"]: each["verdict"] for each in json.loads(capsys.readouterr().out)["checks"]}

    looker: dict[str, Any] = verdicts(configs["view"])
    assert {looker[check] for check in ("API server", "ConsumerGroup defined", "list pods", "get configmaps", "clock")} == {
        "ok"
    }
    assert {looker[check] for check in ("definition's fields", "patch pods", "leader", "coordinator")} == {"unknown"}

    administrator = verdicts(bench.cluster.kubeconfig)
    assert {administrator[check] for check in ("definition's fields", "patch pods", "patch consumergroups")} == {"ok"}
    assert administrator["operators"] == "bad"


def test_a_group_that_is_not_there_is_told_with_those_that_are(name: str, said: Say) -> None:
    code, out, err = said("view", "status", "no-such-group")
    assert (code, out) == (4, "")
    assert err.startswith("shardherd: there is no ConsumerGroup 'no-such-group' in namespace ")
    assert name in err


def test_a_report_and_one_look_of_top_need_no_more(name: str, said: Say, tmp_path: Path) -> None:
    assert said("view", "top", name, "--count", "1")[0] == 0
    assert said("view", "report", name, "-f", str(tmp_path / "report.tar.gz"))[0] == 0
    assert (tmp_path / "report.tar.gz").stat().st_size > 1000
