"""A server with the protocol of OpenAI that looks at the pictures it is sent: it says how many there are and what their
mean colour is. There are no weights of a model that sees to install; what goes over the wire is what such a model
gets."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

Refusal = Callable[[str], bool]


def described(content: list[dict[str, Any]]) -> str:
    """What is in a message: pictures, and the last line of the text."""
    pictures = [part["image_url"]["url"].partition("base64,")[2] for part in content if part["type"] == "image_url"]
    images = [Image.open(BytesIO(base64.b64decode(picture))).convert("RGB") for picture in pictures]
    colours = np.array([np.asarray(image).reshape(-1, 3).mean(axis=0) for image in images])
    strongest = ("red", "green", "blue")[int(colours.mean(axis=0).argmax())]
    [text] = [part["text"] for part in content if part["type"] == "text"]
    kind = "revised: " if "\n\n" in text else ""
    return f"{kind}{len(images)} pictures of {images[0].width} x {images[0].height}, mostly {strongest}"


class VisionServer:
    """Answers requests, and keeps their texts. `refuse(text)` says which to answer with an error."""

    def __init__(self, refuse: Refusal = lambda text: False) -> None:
        self.refuse = refuse
        self.texts: list[str] = []

    @contextmanager
    def running(self) -> Iterator[str]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                content = body["messages"][-1]["content"]
                parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
                text = next(part["text"] for part in parts if part["type"] == "text")
                server.texts.append(text)
                if server.refuse(text):
                    self._send(400, {"error": {"message": "no"}})
                    return
                said = described(parts) if len(parts) > 1 else text.splitlines()[-1].upper()
                choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
                usage = {"prompt_tokens": 10, "completion_tokens": 5}
                self._send(200, {"model": body["model"], "choices": [choice], "usage": usage})

            def _send(self, status: int, value: Any) -> None:
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None: ...

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
            thread = threading.Thread(target=http.serve_forever, daemon=True)
            thread.start()
            yield f"http://127.0.0.1:{http.server_port}/v1"
            http.shutdown()
            thread.join()
