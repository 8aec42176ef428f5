"""Whether a cluster is fit to run groups: what `doctor` says of what was read. Pure. Names the remedy of what is not.

What brokers say is judged by `brokers`, and handed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardherd.controller.pods import is_ready
from shardherd.core.model.reasons import ConditionType
from shardherd.core.model.selectors import SelectorError, parse
from shardherd.core.planning.explaining import said_of
from shardherd.core.planning.listing import condition, identity_of
from shardherd.inspect.answers import Answer, Section, keyed

OK, NOTE, BAD, UNKNOWN = "ok", "note", "bad", "unknown"
"""Verdicts. A note is of what works and may surprise."""

NONE = "there is none"
"""In the place of the API server's words on an object that is not there."""

CLOCK = 5.0
"""Seconds that two clocks may differ: times are shown to the second, and tokens are believed for minutes."""

LATE = 2
"""A Lease that was not renewed for so many times its duration is held by nobody."""


@dataclass(frozen=True, slots=True)
class Right:
    """One thing that the user may or may not do in the namespace, and what it is good for. `needed`: looking takes it."""

    verb: str
    resource: str
    use: str
    allowed: bool | None
    needed: bool = False


@dataclass(frozen=True, slots=True)
class Examined:
    """What was read; None where it could not be, with the API server's words in `refused`, by what it was.

    `labels` are those of the namespace, which are read if the operators choose by them.
    """

    namespace: str
    operators: str
    version: str
    server: str | None = None
    served: tuple[str, ...] | None = None
    definition: Mapping[str, Any] | None = None
    schema: Mapping[str, Any] | None = None
    rights: tuple[Right, ...] = ()
    clock: float | None = None
    lease: Mapping[str, Any] | None = None
    lease_age: float | None = None
    pods: tuple[Mapping[str, Any], ...] | None = None
    labels: Mapping[str, str] | None = None
    coordinator: str | None = None
    groups: tuple[Mapping[str, Any], ...] | None = None
    refused: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the answer."""

    name: str
    verdict: str
    message: str
    remedy: str = ""


def doctor(examined: Examined, brokers: Sequence[Check] | None = None) -> Answer:
    """The answer; its exit code is 3 if something is bad. `brokers`: the lines of these, None if they were not asked."""
    found = list(_api(examined))
    if examined.server is not None:
        found += [
            *_definition(examined),
            *_rights(examined.rights),
            *_clock(examined),
            *_operators(examined),
            *_chosen(examined),
            *_groups(examined),
            *(_unasked(examined) if brokers is None else brokers),
        ]
    return answered(found)


def answered(found: Sequence[Check]) -> Answer:
    """These lines, those that are bad with their remedies at the end."""
    rows = tuple((check.verdict, check.name, check.message) for check in found)
    bad = [check for check in found if check.verdict == BAD]
    said = f"{len(bad)} of {len(found)} checks are bad." if bad else "Nothing is wrong."
    remedies = tuple(f"{check.name}: {check.remedy}" for check in bad if check.remedy)
    sections = (
        Section(heads=("VERDICT", "CHECK", "FOUND"), rows=rows),
        Section(lines=(said, *remedies)),
    )
    shown = ((check.verdict, check.name, check.message, check.remedy or None) for check in found)
    data = {"checks": keyed(("verdict", "check", "found", "remedy"), shown), "bad": len(bad)}
    return Answer(data, sections, 3 if bad else 0)


def missing(wanted: Mapping[str, Any], there: Mapping[str, Any], path: str = "") -> list[str]:
    """Paths of the fields that this schema has and that one has not."""
    found: list[str] = []
    known = there.get("properties", {})
    for name, below in wanted.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        found += missing(below, known[name], here) if name in known else [here]
    if "items" in wanted and "items" in there:
        found += missing(wanted["items"], there["items"], f"{path}[]")
    return found


def _refused(examined: Examined, what: str) -> str:
    return (examined.refused or {}).get(what, "it was not read")


def _api(examined: Examined) -> Iterable[Check]:
    if examined.server is None:
        yield Check("API server", BAD, _refused(examined, "server"), "check --context, --kubeconfig and your credentials")
        return
    yield Check("API server", OK, examined.server)


def _definition(examined: Examined) -> Iterable[Check]:
    if examined.served is None:
        said = _refused(examined, "served")
        yield Check("ConsumerGroup defined", BAD, said, "install the chart, or apply crds/consumergroup.yaml")
        return
    yield Check("ConsumerGroup defined", OK, f"{', '.join(examined.served)} served")
    if examined.definition is None or examined.schema is None:
        yield Check("definition's fields", UNKNOWN, _refused(examined, "definition"))
        return
    lacking = missing(examined.schema, examined.definition)
    if lacking:
        said = f"{len(lacking)} fields of this version are not in it, first {lacking[0]}"
        yield Check("definition's fields", BAD, said, "apply crds/consumergroup.yaml of the operator's version")
    else:
        yield Check("definition's fields", OK, "all that this version knows")


def _rights(rights: Iterable[Right]) -> Iterable[Check]:
    for right in rights:
        name = f"{right.verb} {right.resource}"
        if right.allowed:
            yield Check(name, OK, right.use)
        elif right.allowed is None:
            yield Check(name, UNKNOWN, "the API server did not say")
        elif right.needed:
            yield Check(name, BAD, f"you may not: {right.use}", "ask for the role `view` in this namespace")
        else:
            yield Check(name, UNKNOWN, f"you may not: {right.use}", "only if you mean to")


def _clock(examined: Examined) -> Iterable[Check]:
    if examined.clock is None:
        yield Check("clock", UNKNOWN, _refused(examined, "clock"))
    elif abs(examined.clock) > CLOCK:
        ahead = "ahead of" if examined.clock > 0 else "behind"
        said = f"this machine is {abs(examined.clock):.0f} s {ahead} the API server"
        yield Check("clock", BAD, said, "synchronise it: ages that are shown are wrong by as much")
    else:
        yield Check("clock", OK, "as the API server's, to a few seconds")


def _operators(examined: Examined) -> Iterable[Check]:
    where = f"namespace {examined.operators} (--operator-namespace)"
    if examined.lease is None and _refused(examined, "lease") == NONE:
        yield Check("leader", BAD, f"there is no Lease in {where}", "install the chart, or name its namespace and --release")
    elif examined.lease is None:
        yield Check("leader", UNKNOWN, f"{_refused(examined, 'lease')}; looked in {where}")
    else:
        spec = examined.lease["spec"]
        holder, limit = spec.get("holderIdentity"), LATE * float(spec.get("leaseDurationSeconds", 15))
        if not holder:
            yield Check("leader", BAD, f"nobody holds the Lease in {where}", "see the operators' pods and logs")
        elif examined.lease_age is None or examined.lease_age > limit:
            age = "never" if examined.lease_age is None else f"{examined.lease_age:.0f} s ago"
            yield Check("leader", BAD, f"{holder} renewed the Lease last {age}", "see the operators' pods and logs")
        else:
            yield Check("leader", OK, f"{holder} holds the Lease")
    if examined.pods is None:
        yield Check("operators", UNKNOWN, f"{_refused(examined, 'pods')}; looked in {where}")
    elif not examined.pods:
        yield Check("operators", BAD, f"no pod of an operator in {where}", "install the chart, or name its namespace")
    else:
        yield from _pods(examined)
    if examined.coordinator is None:
        yield Check("coordinator", UNKNOWN, _refused(examined, "coordinator"), "name its address by --api to have it asked")
    else:
        good = examined.coordinator == "ok"
        remedy = "" if good else "see the operators' pods and logs"
        yield Check("coordinator", OK if good else BAD, f"it says: {examined.coordinator}", remedy)


def selectors_of(pods: Iterable[Mapping[str, Any]]) -> list[str]:
    """By which labels these operators choose namespaces; empty if they do not."""
    containers = (container for pod in pods for container in pod.get("spec", {}).get("containers", ()))
    variables = (each for container in containers for each in container.get("env", ()))
    return sorted({each.get("value", "") for each in variables if each["name"] == "SHARDHERD_WATCH_NAMESPACE_SELECTOR"} - {""})


def _chosen(examined: Examined) -> Iterable[Check]:
    selectors = selectors_of(examined.pods or ())
    if not selectors:
        return
    said = " or ".join(selectors)
    if examined.labels is None:
        yield Check("namespace", UNKNOWN, f"{_refused(examined, 'labels')}; its labels must match {said}")
        return
    try:
        matches = any(parse(selector).matches(examined.labels) for selector in selectors)
    except SelectorError as error:
        yield Check("namespace", BAD, f"the operators' selector: {error}", "correct watchNamespaceSelector of the chart")
        return
    if matches:
        yield Check("namespace", OK, f"its labels match {said}")
    else:
        remedy = "label the namespace, or name that of the operators that serve it by --operator-namespace"
        yield Check("namespace", BAD, f"{examined.namespace} is not served: its labels do not match {said}", remedy)


def _pods(examined: Examined) -> Iterable[Check]:
    assert examined.pods is not None
    ready = [pod for pod in examined.pods if is_ready(pod)]
    said = f"{len(ready)} of {len(examined.pods)} are ready"
    yield Check("operators", OK if ready else BAD, said, "" if ready else "see their events and logs")
    versions = {pod["metadata"].get("labels", {}).get("app.kubernetes.io/version") for pod in examined.pods} - {None}
    if not versions:
        yield Check("versions", UNKNOWN, "the operators' pods have no label app.kubernetes.io/version")
    elif versions == {examined.version}:
        yield Check("versions", OK, f"{examined.version} here and there")
    else:
        said = f"{examined.version} here, {', '.join(sorted(map(str, versions)))} there"
        yield Check("versions", BAD, said, "use the command line of the operator's version")


def _unasked(examined: Examined) -> Iterable[Check]:
    if examined.groups:
        yield Check("topics, producers", UNKNOWN, "the brokers were not asked: say --brokers")


def _groups(examined: Examined) -> Iterable[Check]:
    if examined.groups is None:
        yield Check("groups", UNKNOWN, _refused(examined, "groups"))
        return
    for resource in examined.groups:
        name, generation = str(identity_of(resource)), resource["metadata"].get("generation", 0)
        ready = condition(resource, ConditionType.READY)
        if not ready:
            yield Check(name, BAD, "the operator has said nothing of it", "see whether an operator serves this namespace")
        elif resource["status"].get("observedGeneration", 0) < generation:
            yield Check(name, UNKNOWN, "the operator has not seen its last edit yet")
        elif ready["status"] == "True":
            yield Check(name, OK, ready["message"])
        else:
            remedy = said_of(ready["reason"], ConditionType.READY)[1]
            yield Check(name, BAD, f"{ready['reason']}: {ready['message']}", remedy)
        yield from _reached(resource, name)


def _reached(resource: Mapping[str, Any], name: str) -> Iterable[Check]:
    """Whether the group's broker answers the operator, which asks it all the time."""
    source = condition(resource, ConditionType.SOURCE_REACHABLE)
    if not source:
        return
    if source["status"] == "True":
        yield Check(f"broker of {name}", OK, f"it answers the operator: {source['message']}")
    elif source["status"] == "Unknown":
        yield Check(f"broker of {name}", UNKNOWN, f"{source['reason']}: {source['message']}")
    else:
        remedy = said_of(source["reason"], ConditionType.SOURCE_REACHABLE)[1]
        yield Check(f"broker of {name}", BAD, f"{source['reason']}: {source['message']}", remedy)
