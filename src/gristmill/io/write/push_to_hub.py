"""Upload an output to a dataset repository of the Hugging Face hub, in one commit: all of it is there, or nothing.

The hub keeps large files by their content, so that a push which was stopped does not upload them again. A repository
that does not exist is created as a private one. A README.md that is there is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import InputError, explain_storage_error, require
from gristmill.io.write.push_files import CARD, OnFile, Pushed, PushNotes

if TYPE_CHECKING:
    from gristmill.io.storage.output_directory import OutputDirectory

HUB = "hf://"
_REPOSITORY = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?((?:/[^/]+)*)/?")


def parse_hub_url(url: str) -> tuple[str, str | None, str]:
    """The repository, the revision and the folder of `hf://datasets/owner/name@revision/folder`."""
    match = _REPOSITORY.fullmatch(url)
    if match is None:
        raise InputError(f"{url}: write hf://datasets/OWNER/NAME, with @REVISION and /FOLDER if you want")
    return match[1], match[2], match[3].strip("/")


def commit_contents(
    entries: Mapping[str, Any], there: Sequence[str], done: Mapping[str, str], folder: str, with_card: bool
) -> tuple[list[tuple[str, str]], list[str], tuple[str, ...]]:
    """What the commit contains: files and their paths in the repository, paths to delete, and notes."""
    prefix = f"{folder}/" if folder else ""
    added = [(name, f"{prefix}{name}") for name in entries]
    deleted = [f"{prefix}{name}" for name in done if name not in entries and f"{prefix}{name}" in there]
    extensions = {name.partition(".")[2] for name in entries}
    ours = {path for _, path in added} | {f"{prefix}{name}" for name in done}
    others = [path for path in there if path not in ours and path.rpartition("/")[2].partition(".")[2] in extensions]
    others = [path for path in others if path.startswith(prefix)]
    if others:
        raise InputError(f"the repository has {', '.join(others[:3])}, which would be read as part of this output")
    if not with_card:
        return added, deleted, ()
    if CARD in there:
        return added, deleted, (f"{CARD} of the repository was left as it is",)
    return [*added, (CARD, CARD)], deleted, ()


def push_to_hub(
    source: OutputDirectory,
    entries: Mapping[str, Mapping[str, Any]],
    url: str,
    card: str | None,
    on_file: OnFile = lambda name, size: None,
) -> Pushed:
    """Upload verified files, and the `card` as README.md of the repository."""
    repository, revision, folder = parse_hub_url(url)
    if not source.local:
        raise InputError(f"{source.url} is not on this machine: copy it here first, the hub takes only local files")
    hub = require("huggingface_hub", "hub", "pushing to the Hugging Face hub")
    api, notes = hub.HfApi(), PushNotes(source, url)
    try:
        api.create_repo(repository, repo_type="dataset", private=True, exist_ok=True)
        there = api.list_repo_files(repository, repo_type="dataset", revision=revision)
        added, deleted, card_notes = commit_contents(entries, there, notes.done, folder, card is not None)
        operations = [hub.CommitOperationDelete(path_in_repo=path) for path in deleted]
        for name, path in added:
            content = (card or "").encode() if name == CARD else source.file(name)
            operations.append(hub.CommitOperationAdd(path_in_repo=path, path_or_fileobj=content))
        api.create_commit(
            repository, operations, commit_message="Push with gristmill", repo_type="dataset", revision=revision
        )
    except InputError:
        raise
    except Exception as error:  # the library raises errors of its own, and those of its HTTP client
        raise InputError(f"cannot push to {url}: {explain_storage_error(error)}") from error
    for name in set(notes.done) - set(entries):
        notes.forget(name)
    for name, entry in entries.items():
        notes.add(name, entry["checksum"])
        on_file(name, entry["bytes"])
    return Pushed(url, len(entries), sum(entry["bytes"] for entry in entries.values()), 0, len(deleted), card_notes)
