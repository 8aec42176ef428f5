"""The page on a real cluster: whoever has the chart's Role opens it through the API server, and nobody who lacks it does."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from dev.demo.lab import RELEASE, SYSTEM, Lab
from dev.demo.report import DemoError
from shardherd import __version__
from shardherd.page.document import FORMAT
from tests.e2e.people import PAGE, person

pytestmark = pytest.mark.timeout(300)

SERVICES, PODS = f"/api/v1/namespaces/{SYSTEM}/services", f"/api/v1/namespaces/{SYSTEM}/pods"


def test_whoever_is_given_the_role_opens_the_page_and_may_do_nothing_else(installed: Lab) -> None:
    ada = person(installed, "ada")
    missing = (
        f'services "http:{RELEASE}-page:8082" is forbidden: User "{ada.name}" cannot get resource "services/proxy" in API group'
        f' "" in the namespace "{SYSTEM}"'
    )
    with pytest.raises(DemoError) as refused, ada.page():
        pass
    assert str(refused.value) == (
        "`kubectl shardherd page` ended with 1: shardherd: You may not look at the page (the API server refused GET"
        f" {PAGE} with 403 Forbidden: {missing}): ask for the role `{RELEASE}-page` in {SYSTEM}, which may get services/proxy"
        f" of http:{RELEASE}-page:8082; page.enabled of the chart makes it."
    )

    ada.may_see_the_page()
    with ada.page() as page:
        assert "<title>" in page.read("")
        assert "document.json" in page.read("main.js")
        document = page.document()
    assert (document["format"], document["version"], document["group"]) == (FORMAT, __version__, None)
    assert [each for each in ways_beyond(installed) if not ada.refused(*each)] == []


def ways_beyond(lab: Lab) -> list[tuple[str, str]]:
    """What the Role is not about: another port, another Service, the pod itself, anything but GET, and the groups."""
    pod = lab.operator_pod()["metadata"]["name"]
    return [
        ("POST", PAGE),
        ("DELETE", PAGE),
        ("GET", f"{SERVICES}/http:{RELEASE}-page:9090/proxy/metrics"),
        ("GET", f"{SERVICES}/https:{RELEASE}:8443/proxy/readyz"),
        ("GET", f"{PODS}/http:{pod}:8082/proxy/document.json"),
        ("GET", f"{PODS}/{pod}"),
        ("GET", f"/api/v1/namespaces/{SYSTEM}/secrets"),
        ("GET", "/apis/shardherd.dev/v1alpha1/consumergroups"),
    ]


def test_whoever_may_only_view_the_operators_namespace_reaches_the_page_by_no_way_of_the_api_server(installed: Lab) -> None:
    eve = person(installed, "eve")
    eve.may_view(SYSTEM)
    pod = installed.operator_pod()["metadata"]["name"]
    assert eve.refused("GET", f"{PODS}/{pod}") == ""
    ways = [
        ("GET", PAGE),
        ("GET", f"{SERVICES}/{RELEASE}-page:8082/proxy/document.json"),
        ("GET", f"{SERVICES}/{RELEASE}-page:page/proxy/document.json"),
        ("GET", f"{SERVICES}/{RELEASE}-page/proxy/document.json"),
        ("GET", f"{PODS}/{pod}:8082/proxy/document.json"),
        ("GET", f"{PODS}/{pod}/portforward?ports=8082"),
        ("POST", f"{PODS}/{pod}/portforward?ports=8082"),
    ]
    assert [each for each in ways if not eve.refused(*each)] == []


def test_the_port_itself_answers_whoever_reaches_it_and_changes_nothing(installed: Lab) -> None:
    """As docs/page.md says. A policy that keeps pods from it needs a network that enforces policies, and this one does not."""
    url = f"http://{installed.operator_pod()['status']['podIP']}:8082/document.json"
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert json.loads(answer.read())["format"] == FORMAT
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(url, data=b"{}", method="POST"), timeout=10)
    with refused.value as error:
        assert (error.code, error.headers["Allow"]) == (405, "GET, HEAD")
