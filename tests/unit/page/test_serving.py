"""What the page's server answers, to whom, and under which headers."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardherd.page import serving
from shardherd.page.serving import HEADERS, LOOPBACK, PageServer, PageUnavailableError, Wanted
from shardherd.telemetry.background import THREADS
from tests.harness.played_page import Pages, group
from tests.harness.slow_callers import outlast

STATIC = Path(serving.__file__).parent / "static"


def asked(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that waits for nobody for long."""
    monkeypatch.setattr(serving, "TIMEOUT", 0.3)


@pytest.fixture
def port() -> Iterator[int]:
    pages = Pages()
    pages.put(*group(2, 1))
    server = PageServer(0, pages.made, "127.0.0.1", LOOPBACK)
    yield server.port
    server.close()


def test_the_files_of_the_page_are_served_and_nothing_else(port: int) -> None:
    status, headers, body = asked(port, "/")
    assert (status, headers["Content-Type"], body) == (200, "text/html; charset=utf-8", (STATIC / "index.html").read_bytes())
    for path in STATIC.iterdir():
        status, headers, body = asked(port, f"/{path.name}")
        assert (status, body, headers["Cache-Control"]) == (200, path.read_bytes(), "no-cache"), path
        assert asked(port, f"/{path.name}", **{"If-None-Match": headers["ETag"]})[::2] == (304, b"")
    for other in ("/serving.py", "/../serving.py", "/%2e%2e/serving.py", "/static/main.js", "//etc/passwd", "/metrics"):
        assert asked(port, other)[::2] == (404, b"there is no such page\n")


def test_the_document_is_json_that_nobody_keeps(port: int) -> None:
    status, headers, body = asked(port, "/document.json?group=shop%2Fclicks")
    assert (status, headers["Content-Type"], headers["Cache-Control"]) == (200, "application/json", "no-store")
    assert json.loads(body)["group"]["name"] == "clicks"
    for wrong in ("shop", "shop/", "../x/y", "shop/clicks/more", "shop/<b>"):
        assert asked(port, f"/document.json?group={wrong}")[0] == 400


def test_there_is_no_method_but_get_and_head(port: int) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "NONSENSE"):
        status, headers, _ = asked(port, "/document.json", method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD"), method
    status, headers, body = asked(port, "/document.json", "HEAD")
    assert (status, headers["Content-Type"], body) == (200, "application/json", b"")


def test_every_answer_forbids_what_the_page_does_not_need(port: int) -> None:
    for method, path in (("GET", "/"), ("GET", "/main.js"), ("GET", "/document.json"), ("GET", "/nothing"), ("POST", "/")):
        headers = asked(port, path, method)[1]
        assert {name: headers.get(name) for name in HEADERS} == HEADERS, (method, path)
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; ")
    assert "unsafe" not in policy
    assert "http" not in policy


def test_the_page_loads_nothing_from_elsewhere_and_has_no_inline_script() -> None:
    page = (STATIC / "index.html").read_text()
    assert page.count("<script") == page.count('<script type="module" src="main.js"></script>') == 1
    assert "style=" not in page
    assert " on" not in page.replace(" on this", "").replace(" only", "").replace(" one", "")
    for path in STATIC.iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, path
        for risky in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert risky not in text, path


def test_a_page_of_another_name_that_leads_here_is_refused(port: int) -> None:
    assert asked(port, "/document.json", Host=f"evil.example:{port}")[0] == 421
    assert asked(port, "/", Host="")[0] == 421
    for name in (f"LOCALHOST:{port}", "127.0.0.1", "localhost:", f"[::1]:{port}", "[::1]"):
        assert asked(port, "/", Host=name)[0] == 200, name


def failing(error: Exception) -> PageServer:
    def made(_: Wanted) -> bytes:
        raise error

    return PageServer(0, made, "127.0.0.1")


def test_why_there_is_no_document_is_said_and_a_defect_is_not_shown() -> None:
    server = failing(PageUnavailableError("No operator leads now."))
    assert asked(server.port, "/document.json")[::2] == (503, b'{"error": "No operator leads now."}')
    server.close()
    server = failing(RuntimeError("secret"))
    status, _, body = asked(server.port, "/document.json")
    assert (status, b"secret" in body) == (500, False)
    server.close()


def test_one_who_says_nothing_keeps_nobody_else_out_and_too_many_are_sent_away(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(THREADS - 1)]
    assert asked(port, "/")[0] == 200
    monkeypatch.setattr(serving._Handler, "timeout", 0.05)
    silent += [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    assert silent[-1].recv(1) == b""
    for each in silent:
        each.close()


@pytest.mark.usefixtures("brief")
def test_who_sends_a_little_now_and_then_is_cut_off_and_keeps_nobody_out(port: int) -> None:
    outlast(port, THREADS)
    assert asked(port, "/")[0] == 200
