"""Prompts: files with variables, whose version changes with what is said."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from gristmill.core.errors import InputError, PlanError
from gristmill.models.llm import Prompt

TEXT = "[system]\nYou write {{ style }}.\n\n[user]\nRewrite:\n\n{{document}}\n"


def test_variables_are_replaced_once() -> None:
    prompt = Prompt(TEXT)
    assert prompt.fill({"style": "verse", "document": "{{ style }} {style} \\1"}) == [
        {"role": "system", "content": "You write verse."},
        {"role": "user", "content": "Rewrite:\n\n{{ style }} {style} \\1"},
    ]
    assert Prompt("In {language}: {document} {other}", system="S").fill({"language": "fr", "document": "x"}) == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "In fr: x {other}"},
    ]


def test_files_and_versions(tmp_path: Path) -> None:
    file = tmp_path / "rewrite.md"
    file.write_text(TEXT)
    prompt = Prompt(str(file))
    assert (prompt.name, prompt.version) == ("rewrite", Prompt(TEXT).version)
    assert pickle.loads(pickle.dumps(prompt)).messages == prompt.messages
    assert Prompt(TEXT + "!").version != prompt.version
    assert Prompt(TEXT, system="other").version != prompt.version
    with pytest.raises(InputError, match="cannot be read"):
        Prompt(str(tmp_path / "none.md"))


def test_variables_are_checked() -> None:
    with pytest.raises(PlanError, match=r"has \{\{ style \}\}, which has no value. There are: document"):
        Prompt(TEXT).check(["document"])
    with pytest.raises(PlanError, match=r"does not contain \{\{ text \}\}"):
        Prompt(TEXT).check(["document", "style", "text"], needed=["text"])
    Prompt("{document}").check(["document"], needed=["document"])
    with pytest.raises(ValueError, match="is empty"):
        Prompt(" ")
