"""Conversations: `messages`, each with a role and a content that is text or a list of parts, to and from items.

    {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is this?"},
                                               {"type": "image_url", "image_url": {"url": "cats/1.jpg"}}]},
                  {"role": "assistant", "content": "A cat."}]}

A part becomes an item. Its `meta` has the number and the role of its message, and all that the item has no field for,
so that the conversation can be written as it was read. `data:` addresses become bytes. A file is looked for beside the
file of the conversation.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import orjson

from gristmill.interleaved.item_bytes import allowed_ref, is_web_address, ref_path
from gristmill.interleaved.item_columns import AUDIO, IMAGE, TEXT, VIDEO, BadDocument

MESSAGES = "messages"
MESSAGE, ROLE, PART = "message", "role", "part"
OTHER = "other"

_KINDS = {
    "text": TEXT, "input_text": TEXT, "output_text": TEXT, "image_url": IMAGE, "image": IMAGE, "input_image": IMAGE,
    "audio": AUDIO, "audio_url": AUDIO, "input_audio": AUDIO, "video": VIDEO, "video_url": VIDEO,
}  # fmt: skip
_AUDIO_MIME = {"wav": "audio/wav", "mp3": "audio/mpeg", "flac": "audio/flac", "ogg": "audio/ogg"}


def items_of_messages(messages: Any, beside: str, folders: Sequence[str]) -> tuple[list[dict[str, Any]], int]:
    """The items of a conversation, and how many references were refused. Raises a BadDocument."""
    if not isinstance(messages, list):
        raise BadDocument(f"'messages' is no list, but {type(messages).__name__}")
    items: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise BadDocument(f"message {number} is no object, but {type(message).__name__}")
        content = message.get("content")
        rest = {name: value for name, value in message.items() if name not in ("role", "content")}
        about = {MESSAGE: number, ROLE: message.get("role")} | ({"rest": rest} if rest else {})
        if content is None or isinstance(content, str):
            items.append({"kind": TEXT, "text": content or "", "meta": about | {"plain": content is not None}})
        elif isinstance(content, list):
            items += [_item(part, about) for part in content] or [
                {"kind": TEXT, "text": "", "meta": about | {"empty": 1}}
            ]
        else:
            raise BadDocument(f"message {number}: 'content' is {type(content).__name__}, must be text or a list")
    return items, sum(_refuse(item, beside, folders) for item in items)


def _item(part: Any, about: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise BadDocument(f"message {about[MESSAGE]}: a part that has no type")
    kind = _KINDS.get(part["type"], OTHER)
    if kind == TEXT:
        if not isinstance(part.get("text"), str):
            raise BadDocument(f"message {about[MESSAGE]}: a part of text without text")
        return {"kind": TEXT, "text": part["text"], "meta": {**about, PART: _without(part, "text")}}
    if kind == OTHER:
        return {"kind": OTHER, "meta": {**about, PART: dict(part)}}
    return {"kind": kind, **_medium(part, dict(about))}


def _medium(part: Mapping[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """Where the bytes of a part are: an address, a path, or base64."""
    name = next(
        (
            name
            for name in ("image_url", "audio_url", "video_url", "input_audio", "image", "audio", "video")
            if name in part
        ),
        "",
    )
    value = part.get(name)
    nested = value if isinstance(value, Mapping) else {}
    address = (
        value
        if isinstance(value, str)
        else next((nested[key] for key in ("url", "path", "data") if key in nested), None)
    )
    if not isinstance(address, str):
        raise BadDocument(f"message {about[MESSAGE]}: a part {part['type']!r} without an address or data")
    rest = {key: inner for key, inner in nested.items() if inner is not address}
    about[PART] = {**_without(part, name), "field": name} | ({"with": rest} if rest else {})
    if nested:
        about[PART]["key"] = next(key for key in ("url", "path", "data") if key in nested)
    if address.startswith("data:"):
        mime, data = _data_url(address)
        return {"bytes": data, "mime": mime, "meta": about}
    if about[PART].get("key") == "data":
        return {"bytes": _base64(address), "mime": _AUDIO_MIME.get(str(nested.get("format"))), "meta": about}
    return {"ref": {"path": address}, "meta": about}


def _without(part: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key != name}


def _data_url(address: str) -> tuple[str | None, bytes]:
    head, comma, data = address.partition(",")
    if not comma or not head.endswith(";base64"):
        raise BadDocument("a data: address that is not base64")
    return head[5:-7] or None, _base64(data)


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadDocument(f"base64 that cannot be read: {error}") from error


def _refuse(item: dict[str, Any], beside: str, folders: Sequence[str]) -> bool:
    """Resolve the path of an item; one that leads out of the folders is dropped."""
    ref = item.get("ref")
    if not ref or is_web_address(ref["path"]):
        return False
    path = ref_path(ref["path"], beside)
    item["meta"]["named"] = ref["path"]
    if allowed_ref(path, folders):
        item["ref"] = {"path": path}
        return False
    item["ref"] = None
    return True


# -- writing -------------------------------------------------------------------------------------------------------


def messages_of_items(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The conversation that items are. Items without a role, as other readers give them, are one message of a user."""
    parsed = [(item, _meta(item)) for item in items]
    return [_message(list(group)) for _, group in groupby(parsed, key=lambda pair: pair[1].get(MESSAGE, 0))]


def _meta(item: Mapping[str, Any]) -> dict[str, Any]:
    try:
        meta = orjson.loads(item["meta"]) if item["meta"] else {}
    except orjson.JSONDecodeError:
        return {}
    return meta if isinstance(meta, dict) else {}


def _message(group: list[tuple[Mapping[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    item, meta = group[0]
    message: dict[str, Any] = {"role": meta.get(ROLE, "user")}
    if len(group) == 1 and "plain" in meta and item["kind"] == TEXT:
        message["content"] = item["text"] if meta["plain"] or item["text"] else None
    else:
        message["content"] = [] if len(group) == 1 and "empty" in meta and not item["text"] else list(map(_part, group))
    rest: dict[str, Any] = meta.get("rest", {})
    return message | rest


def _part(pair: tuple[Mapping[str, Any], dict[str, Any]]) -> dict[str, Any]:
    item, meta = pair
    part = dict(meta.get(PART) or {})
    if item["kind"] == TEXT:
        return {"type": "text", **part, "text": item["text"]}
    if item["kind"] not in (IMAGE, AUDIO, VIDEO):
        return part or {"type": item["kind"]}
    name, key, rest = part.pop("field", f"{item['kind']}_url"), part.pop("key", None), part.pop("with", {})
    if not meta.get(PART):
        part, key = {"type": name}, "url"
    address = _address(item, meta, raw=key == "data")
    return {**part, name: {key: address, **rest} if key else address}


def _address(item: Mapping[str, Any], meta: Mapping[str, Any], raw: bool) -> str | None:
    if item["bytes"] is not None:
        data = base64.b64encode(item["bytes"]).decode()
        return data if raw else f"data:{item['mime'] or 'application/octet-stream'};base64,{data}"
    named = meta.get("named")
    return named if isinstance(named, str) else (item["ref"] or {}).get("path")


def conversations(documents: Sequence[Sequence[Mapping[str, Any]]]) -> Iterator[list[dict[str, Any]]]:
    """The messages of each document."""
    return map(messages_of_items, documents)
