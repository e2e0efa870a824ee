"""Who is answered: this machine's own programs and pages, over either address; nobody's web page."""

from __future__ import annotations

import contextlib
import json
import select
import socket
from collections.abc import Iterator

import httpx
import pytest
from engine_process import EngineHome, engine_home, wait_until

from server.loopback import is_loopback
from server.process.connections import MOST_LOOPBACK


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:1234", "localhost", "LOCALHOST:80", "[::1]:9", "localhost."])
def test_own_host_is_answered(web: httpx.Client, host: str) -> None:
    assert web.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8642",
        "localhost.evil.example",
        "0.0.0.0",
        "192.168.0.1",
        "127.0.0.1.evil",
        "",
        "[",
        "a@b",
    ],
)
def test_other_host_is_refused(web: httpx.Client, host: str) -> None:
    answer = web.get("/health", headers={"host": host})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_refused")


def test_idle_connections_on_loopback_keep_nobody_out(web: httpx.Client, api_home: EngineHome) -> None:
    address = (web.base_url.host, web.base_url.port or 0)
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(MOST_LOOPBACK + 50)]
        assert web.get("/health").status_code == 200
        assert api_home.health() is not None
        wait_until(lambda: len(select.select(idle, [], [], 0)[0]) >= 50)
        refused = idle[0].makefile("rb").read().split(b"\r\n")  # the oldest went first, and is told
        assert refused[0] == b"HTTP/1.1 503 Service Unavailable"
        assert b"retry-after: 1" in refused
        assert json.loads(refused[-1])["error"]["code"] == "too_many_connections"
        idle[-1].sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert idle[-1].makefile("rb").readline().split()[1] == b"200"


def test_two_hosts_are_refused(web: httpx.Client) -> None:
    # By hand, since clients don't send this: a proxy in between might judge by the other one.
    with socket.create_connection((web.base_url.host, web.base_url.port or 0)) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\nconnection: close\r\n\r\n")
        assert raw.makefile("rb").readline().split()[1] in (b"400", b"403")


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1", "https://[::1]:8"])
def test_own_page_is_answered(web: httpx.Client, origin: str) -> None:
    assert web.get("/health", headers={"origin": origin}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "", "file://", "http://localhost.evil.example", "http://127.0.0.1@evil.example"],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/draftline/v1/complete", "/draftline/v1/stop", "/no/route"])
def test_other_page_is_refused_everywhere(web: httpx.Client, api: httpx.Client, origin: str, path: str) -> None:
    for http in (web, api):
        answer = http.post(path, headers={"origin": origin, "content-type": "text/plain"}, content=b"{}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_refused")
    assert api.get("/health").json()["status"] == "ready"


def test_socket_has_no_host_check(api: httpx.Client) -> None:
    assert api.get("/health", headers={"host": "whatever"}).status_code == 200


@pytest.mark.parametrize("host", ["localhost", "127.1.2.3", "::1", "::ffff:127.0.0.1"])
def test_loopback_addresses(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "localhost.evil", "127.0.0.1.", ""])
def test_other_addresses(host: str) -> None:
    assert not is_loopback(host)


@pytest.fixture(scope="module")
def loading() -> Iterator[EngineHome]:
    with engine_home() as home:
        home.start("--model", str(home.model()), SCRIPTED_LOAD_S="60")
        wait_until(home.health)
        yield home


def test_loading_engine_says_so(loading: EngineHome) -> None:
    with loading.http() as http:
        answer = http.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "loading")
        for path, body in (
            ("/v1/completions", {"prompt": "x"}),
            ("/draftline/v1/complete", {"route": "plain", "segments": [{"role": "text", "text": "x"}]}),
        ):
            answer = http.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "loading")
            assert answer.headers["retry-after"] == "1"
        assert http.get("/v1/models").status_code == 200
