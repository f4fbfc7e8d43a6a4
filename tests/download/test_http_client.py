"""Fetching over real sockets from a server that fails in the ways that servers do."""

from __future__ import annotations

import hashlib
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gristmill.core.errors import DownloadError
from gristmill.io.fetch.http_client import HostResolver, HttpClient, Manners, is_public, retry_after_seconds
from tests.download.faulty_server import Handler, Web, cut, redirect, status

DATA = bytes(range(256)) * 4000


def client(**manners: Any) -> HttpClient:
    return HttpClient(Manners(**{"allow_private": True, "backoff_s": 0.01, **manners}))


def test_a_file_is_fetched_once(web: Web, tmp_path: Path) -> None:
    web.files["/a.bin"] = DATA
    path = tmp_path / "deep" / "a.bin"
    first = client().save(f"{web.url}/a.bin", str(path))
    again = client().save(f"{web.url}/a.bin", str(path))
    assert (first.size, first.fetched, again.fetched, web.times("/a.bin")) == (len(DATA), len(DATA), 0, 1)
    assert path.read_bytes() == DATA
    assert [one.name for one in path.parent.iterdir()] == ["a.bin"]


def test_a_download_that_breaks_off_goes_on_where_it_stopped(web: Web, tmp_path: Path) -> None:
    web.files["/a.bin"] = DATA
    web.faults["/a.bin"] = [cut(600_000)]
    saved = client().save(f"{web.url}/a.bin", str(tmp_path / "a.bin"))
    assert Path(saved.path).read_bytes() == DATA
    assert web.asked[1][1]["range"].startswith("bytes=")
    assert web.asked[1][1]["if-range"] == '"1"'
    assert saved.fetched == len(DATA)


def test_another_process_goes_on_too(web: Web, tmp_path: Path) -> None:
    web.files["/a.bin"] = DATA
    web.faults["/a.bin"] = [cut(600_000)]
    with pytest.raises(DownloadError, match="/a.bin"):
        client(max_retries=0).save(f"{web.url}/a.bin", str(tmp_path / "a.bin"))
    assert not (tmp_path / "a.bin").exists()
    saved = client().save(f"{web.url}/a.bin", str(tmp_path / "a.bin"))
    assert saved.fetched < len(DATA)
    assert (tmp_path / "a.bin").read_bytes() == DATA


def test_a_file_that_has_changed_is_not_glued_to_the_old_one(web: Web, tmp_path: Path) -> None:
    web.files["/a.bin"] = DATA
    web.faults["/a.bin"] = [cut(600_000)]
    with pytest.raises(DownloadError):
        client(max_retries=0).save(f"{web.url}/a.bin", str(tmp_path / "a.bin"))
    web.files["/a.bin"], web.etags["/a.bin"] = DATA[::-1], '"2"'
    client().save(f"{web.url}/a.bin", str(tmp_path / "a.bin"))
    assert (tmp_path / "a.bin").read_bytes() == DATA[::-1]


def test_a_file_that_has_become_shorter_is_fetched_anew(web: Web, tmp_path: Path) -> None:
    web.files["/a.bin"] = DATA
    web.faults["/a.bin"] = [cut(600_000)]
    with pytest.raises(DownloadError):
        client(max_retries=0).save(f"{web.url}/a.bin", str(tmp_path / "a.bin"))
    web.files["/a.bin"] = DATA[:1000]  # the same ETag: a server that is wrong
    client().save(f"{web.url}/a.bin", str(tmp_path / "a.bin"))
    assert (tmp_path / "a.bin").read_bytes() == DATA[:1000]


def test_weak_etags_are_no_ground_to_go_on(web: Web, tmp_path: Path) -> None:
    web.files["/a.bin"] = DATA
    web.faults["/a.bin"] = [cut(600_000, etag='W/"1"')]
    client().save(f"{web.url}/a.bin", str(tmp_path / "a.bin"))
    assert "range" not in web.asked[1][1]
    assert (tmp_path / "a.bin").read_bytes() == DATA


def test_checksums_and_lengths_are_verified(web: Web, tmp_path: Path) -> None:
    web.files["/a.bin"] = DATA
    url, path = f"{web.url}/a.bin", str(tmp_path / "a.bin")
    with pytest.raises(DownloadError, match="sha256 is not 00"):
        client().save(url, path, checksum="sha256:" + "00" * 32)
    with pytest.raises(DownloadError, match="1,024,000 bytes instead of the expected 7"):
        client().save(url, path, length=7)
    with pytest.raises(ValueError, match="like 'sha256:"):
        client().save(url, path, checksum="wrong")
    assert not Path(path).exists()
    client().save(url, path, checksum="sha256:" + hashlib.sha256(DATA).hexdigest(), length=len(DATA))
    Path(path).write_bytes(b"spoilt")
    client().save(url, path, checksum="md5:" + hashlib.md5(DATA).hexdigest())
    assert Path(path).read_bytes() == DATA


def test_what_is_broken_for_a_moment_is_tried_again(web: Web) -> None:
    web.files["/a"] = b"yes"
    web.faults["/a"] = [status(503), status(500), cut(1)]
    assert client().fetch(f"{web.url}/a").body == b"yes"
    assert web.times("/a") == 4


@pytest.mark.parametrize(("code", "times", "said"), [(404, 1, "404"), (403, 1, "403"), (503, 3, "tried 3 times")])
def test_what_stays_broken_is_told(web: Web, code: int, times: int, said: str) -> None:
    web.faults["/a"] = [status(code) for _ in range(9)]
    with pytest.raises(DownloadError, match=said) as caught:
        client(max_retries=2).fetch(f"{web.url}/a")
    assert (web.times("/a"), caught.value.status) == (times, code)
    assert pickle.loads(pickle.dumps(caught.value)).status == code


def test_retry_after_is_obeyed_by_all_threads(web: Web) -> None:
    web.files["/a"] = b"yes"
    web.faults["/a"] = [status(429, Retry_After="1")]
    shared = client()
    began = time.monotonic()
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda _: shared.fetch(f"{web.url}/a"), range(3)))
    assert time.monotonic() - began >= 1.0
    assert web.times("/a") == 4


def test_a_server_that_wants_too_long_a_pause_is_left_alone(web: Web) -> None:
    web.faults["/a"] = [status(503, Retry_After="86400")]
    with pytest.raises(DownloadError, match="asks to wait 86,400 s"):
        client().fetch(f"{web.url}/a")
    assert web.times("/a") == 1


def test_retry_after_may_be_a_date() -> None:
    assert retry_after_seconds("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert (retry_after_seconds("120"), retry_after_seconds("soon"), retry_after_seconds(None)) == (120.0, None, None)


def test_few_requests_run_at_once(web: Web) -> None:
    def slow(handler: Handler, body: bytes) -> bool:
        time.sleep(0.02)
        return False

    web.files["/a"] = b"yes"
    web.faults["/a"] = [slow] * 8
    shared = client(per_host=2)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: shared.fetch(f"{web.url}/a"), range(8)))
    assert web.most_at_once == 2


def test_requests_are_spaced_out(web: Web) -> None:
    web.files["/a"] = b"yes"
    shared = client(requests_per_second=50)
    began = time.monotonic()
    for _ in range(6):
        shared.fetch(f"{web.url}/a")
    assert time.monotonic() - began >= 0.1


def test_a_server_that_says_nothing_is_given_up(web: Web) -> None:
    def hang(handler: Handler, body: bytes) -> bool:
        time.sleep(0.4)
        handler.close_connection = True
        return True

    web.faults["/a"] = [hang] * 2
    with pytest.raises(DownloadError, match="(?i)time"):
        client(read_timeout_s=0.1, max_retries=1).fetch(f"{web.url}/a")


def test_a_server_that_drips_is_given_up(web: Web) -> None:
    def drip(handler: Handler, body: bytes) -> bool:
        handler.close_connection = True
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for _ in range(30):
            handler.wfile.write(b"1\r\nx\r\n")
            handler.wfile.flush()
            time.sleep(0.02)
        return True

    web.faults["/a"] = [drip]
    with pytest.raises(DownloadError, match="deadline_s"):
        client(deadline_s=0.05, max_retries=0).fetch(f"{web.url}/a", headers={"Accept": "*/*"})


def test_redirects_are_followed_but_not_in_circles(web: Web) -> None:
    web.files["/b"] = b"yes"
    web.faults["/a"] = [redirect("/b")]
    found = client().fetch(f"{web.url}/a")
    assert (found.body, found.url) == (b"yes", f"{web.url}/b")
    web.faults |= {"/x": [redirect("/y")], "/y": [redirect("/x")]}
    with pytest.raises(DownloadError, match="redirect loop"):
        client().fetch(f"{web.url}/x")
    web.faults |= {f"/{number}": [redirect(f"/{number + 1}")] for number in range(9)}
    with pytest.raises(DownloadError, match="more than 3 redirects"):
        client(max_redirects=3).fetch(f"{web.url}/0")


def test_too_much_is_refused(web: Web, tmp_path: Path) -> None:
    web.files["/a"] = DATA
    with pytest.raises(DownloadError, match="limit of 1,000"):
        client().fetch(f"{web.url}/a", max_bytes=1000)
    with pytest.raises(DownloadError, match="limit of 1,000"):
        client().save(f"{web.url}/a", str(tmp_path / "a"), max_bytes=1000)

    def lie(handler: Handler, body: bytes) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Length", str(2**31))
        handler.end_headers()
        return True

    web.faults["/a"] = [lie]
    with pytest.raises(DownloadError, match="2,147,483,648 bytes, more than the limit"):
        client().fetch(f"{web.url}/a")


def test_parts_of_files(web: Web) -> None:
    web.files["/a"] = DATA
    fetch = client(max_retries=0).fetch
    assert fetch(f"{web.url}/a", byte_range=(5, 15)).body == DATA[5:15]
    assert fetch(f"{web.url}/a", byte_range=(len(DATA) - 3, len(DATA) + 50)).body == DATA[-3:]
    with pytest.raises(DownloadError, match="416"):
        fetch(f"{web.url}/a", byte_range=(len(DATA), len(DATA) + 1))
    web.faults["/a"] = [lambda handler, body: handler.answer(200, body) or True]
    with pytest.raises(DownloadError, match="ignores Range"):
        fetch(f"{web.url}/a", byte_range=(5, 15))


def test_private_addresses_are_refused_also_after_a_redirect(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.files["/a"] = b"secret"
    with pytest.raises(DownloadError, match="allow_private=True"):
        HttpClient().fetch(f"{web.url}/a")
    assert not web.asked
    # the first name is allowed to be anywhere, the one that it leads to is not
    port = web.url.rpartition(":")[2]
    real = HostResolver.addresses
    web.faults["/a"] = [redirect(f"http://localhost:{port}/a")]
    monkeypatch.setattr(
        HostResolver,
        "addresses",
        lambda self, host, *rest: ["127.0.0.1"] if host == "good.test" else real(self, host, *rest),
    )
    with pytest.raises(DownloadError, match="localhost is"):
        HttpClient().fetch(f"http://good.test:{port}/a")
    assert len(web.asked) == 1
    assert web.asked[0][1]["host"] == f"good.test:{port}"


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("169.254.169.254", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::a00:1", False),
        ("2002:7f00:1::", False),
        ("192.0.0.192", False),
        ("192.0.0.9", False),
        ("fec0::1", False),
        ("64:ff9b:1::a00:1", False),
        ("::127.0.0.1", False),
        ("::ffff:0:127.0.0.1", False),
        ("5f00::1", False),
        ("64:ff9b::808:808", True),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public


PRIVATE_HOSTS = """
127.1 2130706433 0x7f.1 0177.0.0.1 10.0x1 127.0.0.1. １２７.１ [::1] [::127.0.0.1]
localhost LOCALHOST. a.localhost intranet metadata.google.internal printer.local router.lan
"""


@pytest.mark.parametrize("host", PRIVATE_HOSTS.split())
def test_private_hosts_are_refused_behind_a_proxy_in_any_spelling(
    host: str, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", web.url)
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(DownloadError, match="private network"):
        HttpClient(Manners(max_retries=0)).fetch(f"http://{host}/secret")
    assert not web.asked


def test_public_hosts_are_asked_for_behind_a_proxy(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", web.url)
    monkeypatch.setenv("no_proxy", "")
    web.files["http://example.org/a"] = b"there"
    assert HttpClient(Manners(max_retries=0)).fetch("http://example.org/a").body == b"there"


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "http://", "http://[x/", "nonsense"])
def test_only_http_is_fetched(url: str) -> None:
    with pytest.raises(DownloadError, match="http|read"):
        client().fetch(url)


def test_names_without_an_address_are_told() -> None:
    with pytest.raises(DownloadError, match="cannot be resolved|invalid host"):
        client(max_retries=0).fetch("http://no-such-host.invalid/")


def test_a_file_that_has_changed_is_not_glued_together_by_a_server_without_if_range(web: Web, tmp_path: Path) -> None:
    def heedless(handler: Handler, body: bytes) -> bool:
        start = int(handler.headers["Range"].removeprefix("bytes=").rstrip("-"))
        span = f"bytes {start}-{len(body) - 1}/{len(body)}"
        handler.answer(206, body[start:], {"Content-Range": span, "ETag": '"2"'})
        return True

    web.files["/a.bin"] = DATA
    web.faults["/a.bin"] = [cut(600_000), heedless]
    with pytest.raises(DownloadError, match="changed since"):
        client(max_retries=1).save(f"{web.url}/a.bin", str(tmp_path / "a.bin"))
    web.files["/a.bin"], web.etags["/a.bin"] = DATA[::-1], '"2"'
    client().save(f"{web.url}/a.bin", str(tmp_path / "a.bin"))
    assert (tmp_path / "a.bin").read_bytes() == DATA[::-1]


def test_a_server_that_drips_is_given_up_without_a_deadline(web: Web) -> None:
    def drip(handler: Handler, body: bytes) -> bool:
        handler.close_connection = True
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        for _ in range(200):
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.02)
        return True

    web.faults["/a"] = [drip]
    with pytest.raises(DownloadError, match="too slow"):
        client(read_timeout_s=0.1, max_retries=0).fetch(f"{web.url}/a")


@pytest.mark.parametrize("headers", [{"Location": "http://[bad"}, {"Content-Length": "9" * 5000}])
def test_answers_that_make_no_sense_fail_like_others(web: Web, headers: dict[str, str]) -> None:
    web.faults["/a"] = [status(302 if "Location" in headers else 200, **{"Content-Length": "2", **headers})]
    with pytest.raises(DownloadError, match="/a"):
        client(max_retries=0).fetch(f"{web.url}/a")


def test_a_host_with_other_letters_is_asked_by_its_ascii_name(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.files["/a"] = b"found"
    asked = []
    monkeypatch.setattr(HostResolver, "addresses", lambda _, host, *more: [asked.append(host), "127.0.0.1"][1:])
    port = web.url.rpartition(":")[2]
    assert client().fetch(f"http://例え.jp:{port}/a").body == b"found"
    assert asked == ["xn--r8jz45g.jp"]
    assert web.asked[0][1]["host"] == f"xn--r8jz45g.jp:{port}"
