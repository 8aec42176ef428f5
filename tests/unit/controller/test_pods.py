"""Why a driver is not ready, named as a user would ask for it."""

from __future__ import annotations

from typing import Any

import pytest

from shardherd.controller.pods import driver, ending_line, executor
from shardherd.core.model.nouns import ConsumerId, Incarnation
from shardherd.core.planning.observed import ConsumerPod, ExecutorPod, Trouble
from tests.unit.controller.builders import driver_pod, executor_pod, terminated

UID = "aaaaaaaa-0000-0000-0000-000000000001"
REMEDY = "Correct spec.application.image, or spec.application.imagePullSecrets. The kubelet says:"


def test_a_ready_driver_has_no_trouble_whatever_it_went_through() -> None:
    pod = driver_pod(1, ready=True, template_hash="now", lastState=terminated(1), restartCount=7)
    assert driver(pod, "now") == ConsumerPod(ConsumerId("clicks-1"), UID, 1, ready=True, running=True)


def test_a_driver_of_an_older_declaration_is_not_current() -> None:
    old = ConsumerPod(ConsumerId("clicks-1"), UID, 1, current=False, running=True)
    assert driver(driver_pod(1, template_hash="before"), "now") == old


@pytest.mark.parametrize(
    ("served_by", "operator", "foreign"),
    [
        ("a/shardherd", "b/shardherd", True),
        ("a/shardherd", "a/shardherd", False),
        ("", "b/shardherd", False),  # of an operator that does not mark them
        ("a/shardherd", "", False),  # nobody has told us our name
    ],
)
def test_a_driver_that_calls_another_operator_is_foreign_and_so_not_current(
    served_by: str, operator: str, foreign: bool
) -> None:
    pod = driver_pod(1, ready=True, template_hash="now")
    if served_by:
        pod["metadata"]["annotations"]["shardherd.dev/served-by"] = served_by
    made = ConsumerPod(ConsumerId("clicks-1"), UID, 1, ready=True, running=True, current=not foreign, foreign=foreign)
    assert driver(pod, "now", operator=operator) == made


@pytest.mark.parametrize("state", [{}, {"waiting": {"reason": "ContainerCreating"}}, terminated(1)])
def test_a_driver_whose_container_does_not_run_is_not_running(state: dict[str, Any]) -> None:
    found = driver(driver_pod(1, state=state), "")
    assert found is not None
    assert not found.running


@pytest.mark.parametrize(("value", "cordoned"), [("true", True), ("false", False), ("", False), (None, False)])
def test_a_label_says_that_a_consumer_is_cordoned(value: str | None, cordoned: bool) -> None:
    pod = driver_pod()
    if value is not None:
        pod["metadata"]["labels"]["shardherd.dev/cordoned"] = value
    found = driver(pod, "")
    assert found is not None
    assert found.cordoned is cordoned


def test_an_executor_is_no_driver_and_the_other_way_round() -> None:
    incarnation = Incarnation(UID, 3)
    assert executor(executor_pod(2, incarnation)) == ExecutorPod(
        "clicks-0-3-exec-2", "eeeeeeee-0000-0000-0000-000000000002", incarnation
    )
    assert driver(executor_pod(2, incarnation), "now") is None
    assert executor(driver_pod()) is None


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        (
            {"state": {"waiting": {"reason": "ErrImageNeverPull", "message": "is not present"}}},
            "ImageUnavailable",
            f'Pod clicks-0 cannot get the image "example/clicks:1" (ErrImageNeverPull). {REMEDY} is not present',
        ),
        (
            {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling"}}},
            "ImageUnavailable",
            f'Pod clicks-0 cannot get the image "example/clicks:1" (ImagePullBackOff). {REMEDY} Back-off pulling',
        ),
        (
            {"state": {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "x" not found'}}},
            "ContainerConfigInvalid",
            'Pod clicks-0 cannot start its container (CreateContainerConfigError): secret "x" not found',
        ),
        (
            {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": terminated(3, code=1), "restartCount": 3},
            "CrashLooping",
            "The application in pod clicks-0 ended with exit code 1 and was started again 3 times; it said: ValueError: no",
        ),
        (
            {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": terminated(3, code=137, reason="OOMKilled")},
            "ConsumerEnded",
            "The application in pod clicks-0 ended with exit code 137 (OOMKilled) and is being started again; "
            "it said: ValueError: no",
        ),
        (
            {
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": terminated(3, code=0, reason="Completed"),
                "restartCount": 1,
            },
            "CrashLooping",
            "The application in pod clicks-0 ended with exit code 0 and was started again 1 time; it said: ValueError: no",
        ),
    ],
)
def test_trouble_names_its_cause(status: dict[str, Any], reason: str, message: str) -> None:
    seen = driver(driver_pod(**status), "", "Traceback\nValueError: no\n")
    assert seen is not None
    assert seen.trouble == Trouble(reason, message)


def test_a_crash_without_a_log_says_where_to_look() -> None:
    seen = driver(driver_pod(state=terminated(1, code=2)), "")
    assert seen is not None
    assert seen.trouble is not None
    assert seen.trouble.message.endswith("; see what clicks-0 logged before it ended")


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({}, id="it runs"),
        pytest.param({"state": {"waiting": {"reason": "ContainerCreating"}}}, id="it is being made"),
        pytest.param({"state": {"running": {}}, "lastState": terminated(1), "restartCount": 1}, id="it crashed once"),
    ],
)
def test_starting_is_no_trouble(status: dict[str, Any]) -> None:
    seen = driver(driver_pod(**status), "")
    assert seen is not None
    assert seen.trouble is None


def test_a_driver_that_was_ready_since_it_started_and_is_so_no_more_hangs() -> None:
    seen = driver(running(began="12:00:00", turned="12:03:07"), "")
    assert seen is not None
    assert seen.trouble == Trouble(
        "ConsumerSilent",
        "The process of clicks-0 runs, but it is not ready any more since 2026-01-01T12:03:07Z: it hangs, or was stopped, and "
        "reads nothing.",
    )


@pytest.mark.parametrize("turned", ["11:59:58", "12:00:00", ""])
def test_a_driver_that_was_not_ready_since_it_started_is_starting(turned: str) -> None:
    seen = driver(running(began="12:00:00", turned=turned), "")
    assert seen is not None
    assert seen.trouble is None


def test_a_driver_that_is_to_go_does_not_hang() -> None:
    pod = running(began="12:00:00", turned="12:03:07")
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T12:03:30Z"
    seen = driver(pod, "")
    assert seen is not None
    assert seen.trouble is None


def running(*, began: str, turned: str) -> dict[str, Any]:
    """A driver's pod that is not ready: when its container started, and when Ready turned False."""
    pod = driver_pod(state={"running": {"startedAt": f"2026-01-01T{began}Z"}})
    if turned:
        pod["status"]["conditions"][0]["lastTransitionTime"] = f"2026-01-01T{turned}Z"
    return pod


def test_a_driver_without_a_node_says_why() -> None:
    pod = driver_pod()
    pod["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes: Insufficient memory."}]}
    seen = driver(pod, "")
    assert seen is not None
    assert seen.trouble == Trouble("Unschedulable", "Pod clicks-0 has no node: 0/1 nodes: Insufficient memory.")


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", ""),
        ("one\ntwo\n\n", "two"),
        ("Traceback\n  File\nmy.module.OddError: broken\n26/01/01 INFO ShutdownHookManager\n", "my.module.OddError: broken"),
        ("ValueError: first\nduring handling\nKeyError: 'last'\n", "KeyError: 'last'"),
        (
            "py4j.protocol.Py4JJavaError: An error occurred while calling o94.parquet.\n"
            ": java.io.IOException: No space left on device\n\tat java.io.FileOutputStream\n",
            "java.io.IOException: No space left on device",
        ),
        (
            "py4j.protocol.Py4JJavaError: An error occurred while calling o94.parquet.\n",
            "py4j.protocol.Py4JJavaError: An error occurred while calling o94.parquet.",
        ),
    ],
)
def test_the_last_words_are_those_of_the_last_exception(log: str, line: str) -> None:
    assert ending_line(log) == line


def test_a_consumer_that_ended_itself_says_why_whatever_else_failed_before_and_after() -> None:
    log = """26/11/27 12:07:37 ERROR Utils: Uncaught exception in thread Thread-3
io.fabric8.kubernetes.client.KubernetesClientTimeoutException: Timed out waiting for [1000] milliseconds for [Pod].
\tat io.fabric8.kubernetes.client.dsl.internal.BaseOperation.waitUntilCondition(BaseOperation.java:958)
12:08:06.444 ERROR   shardherd.consumer.session: stopping: it refuses clicks-0 (Forbidden) group=demo/clicks consumer=clicks-0
12:08:06.446 ERROR   shardherd.spark.driver_runtime: cancelling running jobs: it refuses clicks-0
pyspark.errors.exceptions.captured.StreamingQueryException: [STREAM_FAILED] Job 4 cancelled
"""
    assert ending_line(log) == "it refuses clicks-0 (Forbidden)"
