"""Translation: what is cut, what is protected, and what comes back."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.synthetic import ConversationStage, TranslationStage
from gristmill.synthetic.translation_segments import segmented
from tests.synthetic.test_judging import Scripted

TEXT = """# Wheat

Wheat is a grass. See https://example.com/a?b=1 for more, or run `make bread`.

```python
print("do not translate")
```

- one *point*
- 42
Hello {name}, mail to a@b.org!
"""


def upper(model: str, text: str, seed: int) -> Any:
    if "whole number" in text:
        return {"fluency": 5, "accuracy": 4, "idiomaticity": 4, "terminology": 4, "handling_of_format": 1}
    return text.rpartition("belongs.\n\n")[2].upper()


def stage(**settings: Any) -> TranslationStage:
    return TranslationStage("en", "de", **{"client": Scripted(upper), "model_name": "m", **settings})


@pytest.mark.parametrize("mode", ["coarse", "fine"])
def test_code_and_placeholders_stay(run: Any, mode: Any) -> None:
    [row] = run(stage(segmentation_mode=mode), [{"text": TEXT}])
    kept = r"https://example.com/a\?b=1|`make bread`|```python\nprint\(.*\)\n```|\{name\}|a@b.org"
    pieces, gaps = re.split(kept, TEXT), re.findall(kept, TEXT)
    expected = "".join(piece.upper() + gap for piece, gap in zip(pieces, [*gaps, ""], strict=True))
    assert row["translated_text"] == expected
    assert row["text"] == TEXT
    assert row["synthetic_prompt"].startswith("translate-")


@given(
    st.text(alphabet=st.sampled_from("ab. !?\n`-#{}<>/⟦0⟧$\t中。1"), max_size=60),
    st.sampled_from(["coarse", "fine"]),
    st.integers(0, 9),
)
def test_what_is_not_changed_comes_back_as_it_was(text: str, mode: str, least: int) -> None:
    cut = segmented(text, mode, least)
    assert cut.joined([segment.restored(segment.text) or "?" for segment in cut.segments]) == text or "⟦" in text


def test_sentences() -> None:
    cut = segmented("One is here. Two is there! Is 3.5 a number? 这是一。这是二。", "fine")
    assert [segment.text for segment in cut.segments] == [
        "One is here.",
        "Two is there!",
        "Is 3.5 a number?",
        "这是一。",
        "这是二。",
    ]


def test_conversations_are_translated_in_place(run: Any) -> None:
    rows = [
        {"messages": [{"role": "user", "content": "why not"}, {"role": "assistant", "content": "so it is"}], "n": 1}
    ]
    [row] = run(stage(text_field="messages.*.content", output_mode="both"), rows)
    translated = [{"role": "user", "content": "WHY NOT"}, {"role": "assistant", "content": "SO IT IS"}]
    assert row["messages"] == row["translated_text"] == translated
    [row] = run(stage(text_field=["a", "b"], output_mode="replaced"), [{"a": "x", "b": "y", "c": "z"}])
    assert (row["a"], row["b"], row["c"]) == ("X", "Y", "z")


def test_what_is_translated_is_skipped(run: Any) -> None:
    rows = [{"text": "old", "translated_text": "ALT"}, {"text": "new", "translated_text": None}]
    first, second = run(stage(skip_translated=True), rows)
    assert (first["translated_text"], second["translated_text"]) == ("ALT", "NEW")
    assert first["synthetic_model"] is None


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda text, seed: "", "it is empty"),
        (lambda text, seed: "kurz", "less than 0.3"),
        (lambda text, seed: "I'm sorry, I cannot translate this text for you, my friend.", "the model refuses"),
        (lambda text, seed: "Weizen ist ein Gras, siehe die Seite im Netz und noch mehr.", "must not be translated"),
    ],
)
def test_a_bad_translation_is_not_taken(run: Any, answer: Any, problem: str) -> None:
    text = "Wheat is a grass, see https://example.com and the rest of it."
    client = Scripted(lambda model, prompt, seed: answer(prompt, seed))
    assert run(stage(client=client), [{"text": text}]) == []
    [record] = run.result.quarantined()
    assert problem in record.error
    assert record.row["text"] == text
    once_bad = Scripted(lambda model, prompt, seed: upper(model, prompt, seed) if seed else answer(prompt, seed))
    [row] = run(stage(client=once_bad), [{"text": text}])
    assert row["translated_text"].startswith("WHEAT")


def test_the_script_of_the_language(run: Any) -> None:
    russian = TranslationStage("en", "ru", client=Scripted(upper), model_name="m")
    assert run(russian, [{"text": "Hello there"}]) == []
    assert "only 0% of its letters are of ru" in run.result.quarantined()[0].error


def test_faithfulness(run: Any) -> None:
    [row] = run(stage(enable_faith_eval=True), [{"text": "hello"}])
    assert (row["faith_fluency"], row["faith_handling_of_format"], row["faith_avg"]) == (5, 1, 3.6)
    assert run(stage(enable_faith_eval=True, faith_threshold=4), [{"text": "hello"}]) == []
    assert len(run(stage(enable_faith_eval=True, faith_threshold=4, filter_enabled=False), [{"text": "hello"}])) == 1


def test_a_real_model_translates(asked: Any, run: Any) -> None:
    asked["generation_config"] = {"max_tokens": 40}
    rows = run(TranslationStage("English", "French", **asked, max_length_ratio=None), [{"text": "The bread is good."}])
    assert len(rows) + len(run.result.quarantined()) == 1


def test_questions_and_answers_as_conversations(run: Any) -> None:
    [row] = run(
        ConversationStage(system="S"), [{"question": "Why?", "answer": "So."}, {"question": "?", "answer": " "}]
    )
    assert row["messages"] == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "So."},
    ]
    [row] = run(ConversationStage(pairs_field="qa"), [{"qa": "Q: a\nA: b\nQ: c\nA: d"}])
    assert [message["content"] for message in row["messages"]] == ["a", "b", "c", "d"]
