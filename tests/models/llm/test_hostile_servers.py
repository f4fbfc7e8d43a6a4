"""What a server may answer that is no HTTP, or has no end: an error, soon and in little memory."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from gristmill.models.llm import http_connection
from gristmill.models.llm.http_connection import CutAnswerError, HttpAnswer, HttpPool

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-Header: value\r\n" * 1000),
    "a status line": (b"HTTP/1.1 200 ", b"OK" * 10_000),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 5000),
    "the length of a chunk": (HEAD, b"0" * 10_000),
    "the extension of a chunk": (HEAD + b"5;", b"x" * 10_000),
    "what follows the body": (HEAD + b"1\r\na\r\n0\r\n", b"X-Trailer: value\r\n" * 1000),
    "a body of a length": (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n", b"x" * 10_000),
    "a body without a length": (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 100_000),
    "chunks of one byte": (HEAD, b"1\r\na\r\n" * 10_000),
    "bytes": (b"", b"\0" * 10_000),
}


async def ask(start: bytes, more: bytes) -> HttpAnswer:
    """What a client makes of a server that sends something for ever."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(start)
        try:
            while True:
                writer.write(more)
                await writer.drain()
        except ConnectionError:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    pool = HttpPool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
    try:
        async with asyncio.timeout(20):
            return await pool.request("POST", "/chat", b"{}")
    finally:
        pool.close()
        server.close()


@pytest.mark.parametrize("what", ENDLESS)
def test_an_answer_without_end_is_cut(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "MAX_BODY_BYTES", 2**15)
    tracemalloc.start()
    with pytest.raises(CutAnswerError):
        asyncio.run(ask(*ENDLESS[what]))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2**24
