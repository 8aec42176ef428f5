"""The operator's page through the API server: what is asked for, and what is told where it cannot be had."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError
from shardherd.cli import main
from shardherd.inspect import browsing, commands
from shardherd.inspect.browsing import Through, served
from shardherd.inspect.observed import InspectError

PATH = "/api/v1/namespaces/system/services/http:herd-page:8082/proxy/document.json"


class Api:
    """An API server that has the document, or this error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.requests: list[tuple[str, str]] = []

    def call(self, method: str, path: str, *, decode: bool) -> Any:
        assert not decode
        self.requests.append((method, path))
        if self.error is not None:
            raise self.error
        return b'{"format":1}'


def through(api: Api) -> Through:
    return Through(api, "system", "herd", 8082)


def test_only_the_document_is_asked_for_and_the_files_are_our_own() -> None:
    api = Api()
    with served(through(api), 0) as address:
        assert address.startswith("http://127.0.0.1:")
        for path in ("", "main.js", "document.json?group=shop/clicks"):
            with urllib.request.urlopen(f"{address}{path}", timeout=10) as answer:
                assert answer.status == 200
        for path in ("metrics", "api/v1/secrets", "..%2F..%2Fsecrets"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"{address}{path}", timeout=10)
        api.error = ApiError("refused", 503, "ServiceUnavailable")
        with pytest.raises(urllib.error.HTTPError, match="503") as raised:
            urllib.request.urlopen(f"{address}document.json", timeout=10)
        assert json.loads(raised.value.read())["error"] == (
            "The API server does not reach the page (refused): no operator leads now, or networkPolicy.pageFrom of the chart"
            " does not let it in."
        )
    assert api.requests == [("GET", PATH), ("GET", f"{PATH}?group=shop/clicks"), ("GET", PATH)]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ApiUnavailableError("no route"), "The API server does not answer: no route."),
        (ApiError("x", 404, ""), "There is no Service herd-page in system: set page.enabled of the chart"),
        (
            ApiError("x", 403, ""),
            "You may not look at the page (x): ask for the role `herd-page` in system, which may get services/proxy of"
            " http:herd-page:8082; page.enabled of the chart makes it.",
        ),
        (ApiError("x", 503, ""), "The API server does not reach the page"),
        (ApiError("the API server refused", 500, ""), "The API server refuses: the API server refused."),
    ],
)
def test_why_the_page_cannot_be_had_is_said_at_once(error: Exception, said: str) -> None:
    with pytest.raises(InspectError) as raised, served(through(Api(error)), 0):
        pass
    assert said in str(raised.value)


def test_a_port_that_is_taken_is_named() -> None:
    with served(through(Api()), 0) as address:
        port = int(address.rsplit(":", 1)[1].rstrip("/"))
        with pytest.raises(InspectError, match=f"--port {port} cannot be served"), served(through(Api()), port):
            pass


def test_the_command_says_the_address_and_ends_by_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = Api()
    monkeypatch.setattr(commands, "connect", lambda _kubeconfig, _context, **_: (api, "shop"))
    monkeypatch.setattr(browsing, "until_interrupted", lambda: None)
    assert main(["page", "--operator-namespace", "system", "--release", "herd"]) == 0
    out, err = capsys.readouterr()
    assert (out.startswith("http://127.0.0.1:"), out.endswith("/ (Ctrl-C ends it)\n"), err) == (True, True, "")
    assert api.requests == [("GET", PATH)]


def test_of_local_mode_the_address_is_said_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["page", "--local", "--state", str(tmp_path / "none")]) == 1
    assert "is no state folder" in capsys.readouterr().err
    from shardherd.local.state import State

    state = State(tmp_path / "state")
    state.make()
    state.objects().database.note("page-port", "4321")
    with pytest.raises(InspectError, match="no operator runs"):
        browsing.local_address(state.folder)
    monkeypatch.setattr("shardherd.adapters.local.identity.holder", lambda _: 1)
    assert browsing.local_address(state.folder) == "http://127.0.0.1:4321/"
