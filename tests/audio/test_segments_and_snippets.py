"""Rows with words, speakers and segments: alignment, segments for training, snippets of long recordings; written
forms."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from gristmill import LocalExecutor, Pipeline
from gristmill.audio import (
    AbbreviationConcatStage,
    AlignTranscriptStage,
    AudioBatch,
    AudioTask,
    AudioWebDatasetReader,
    InverseTextNormalizationStage,
    MergeAlignmentDiarizationStage,
    OverlapFilterStage,
    PrepareModuleSegmentsStage,
    SnippetCutPlannerStage,
    SnippetRepetitionFilterStage,
    build_audio_pretrain_pipeline,
)
from gristmill.audio.transcripts.align_words import HeardWord, align_words
from gristmill.audio.transcripts.written_forms import concat_abbreviations, english_numbers
from gristmill.audio.windows.snippets import overlapping_segments, snippet_id
from tests.audio.sound_fixtures import RATE, read_manifest_file, write_manifest_file


def segment(start: float, end: float, text: str = "said", **more: Any) -> dict[str, Any]:
    return {"start": start, "end": end, "text": text, **more}


def timed(text: str, step: float = 0.5, begin: float = 0.0) -> list[dict[str, Any]]:
    return [
        {"word": word, "start": begin + step * at, "end": begin + step * (at + 1)}
        for at, word in enumerate(text.split())
    ]


def of(stage: Any, **data: Any) -> dict[str, Any]:
    result: dict[str, Any] = stage.process(AudioTask(data)).data
    return result


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("the U S A and N A S A", "the USA and NASA"),
        ("I saw A B C News", "I saw ABC News"),
        ("He and I went", "He and I went"),
        ("plan B", "plan B"),
        ("U. S. law", "US law"),
        ("der Ärger I A", "der Ärger I A"),
        ("C D I bought", "CD I bought"),
    ],
)
def test_spelled_letters_are_joined(text: str, found: str) -> None:
    assert concat_abbreviations(text)[0] == found


def test_flagged_rows_keep_their_letters() -> None:
    batch = AudioBatch([{"text": "the U S", "_skipme": flag} for flag in ("", "Hallucination")])
    rows = AbbreviationConcatStage().process(batch).to_rows()
    assert [row["text"] for row in rows] == ["the US", "the U S"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("twenty three people", "23 people"),
        ("one man and twelve women", "one man and 12 women"),
        ("Three hundred and five", "305"),
        ("two million four hundred thousand and six", "2400006"),
        ("three point one four", "3.14"),
        ("one two three", "one two three"),
        ("no number, none", "no number, none"),
        ("nineteen eighty four", "nineteen eighty four"),
        ("sixty-five", "65"),
    ],
)
def test_numbers_are_written_in_digits(text: str, found: str) -> None:
    assert english_numbers(text) == found


def test_numbers_of_rows_and_segments() -> None:
    [row] = InverseTextNormalizationStage().process(AudioBatch([{"text": "page forty two"}])).to_rows()
    assert row["text_ITN"] == "page 42"
    given = AudioBatch([{"segments": [segment(0, 1, "forty two"), {"start": 1, "end": 2}]}])
    [row] = InverseTextNormalizationStage().process(given).to_rows()
    assert [one.get("text_ITN") for one in row["segments"]] == ["42", None]
    with pytest.raises(ValueError, match="give a normalizer"):
        InverseTextNormalizationStage("de")


def test_words_of_a_transcript_get_the_times_of_what_was_heard() -> None:
    heard = {"language": "en", "words": timed("the quick brawn fox", begin=10.0)}
    batch = AudioBatch([{"text": "The quick brown fox, ran", "asr": heard, "offset": 10.0, "duration": 4.0}])
    [row] = AlignTranscriptStage().process(batch).to_rows()
    assert [(one["start"], one["end"]) for one in row["alignment"]] == [
        (10.0, 10.5), (10.5, 11.0), (11.0, 11.5), (11.5, 12.0), (12.0, 14.0),
    ]  # fmt: skip
    assert [one["heard"] for one in row["alignment"]] == [True, True, False, True, False]
    assert row["alignment_match"] == pytest.approx(0.6)
    [silent] = AlignTranscriptStage().process(AudioBatch([{"text": "a", "asr": None}])).to_rows()
    assert silent["alignment"] == []


@given(st.lists(st.sampled_from("abcd"), max_size=8), st.lists(st.sampled_from("abcd"), max_size=8))
def test_words_stay_in_order_and_within_the_recording(expected: list[str], heard: list[str]) -> None:
    words = [HeardWord(word, 1.0 + at, 2.0 + at) for at, word in enumerate(heard)]
    found = align_words(expected, words, 0.5, 2.5 + len(heard))
    assert [one["word"] for one in found] == (expected if heard else [])
    edges = [edge for one in found for edge in (one["start"], one["end"])]
    assert edges == sorted(edges)
    assert all(0.5 <= edge <= 2.5 + len(heard) for edge in edges)


def test_words_go_to_the_turns_of_speakers() -> None:
    segments = [{"speaker": "a", "start": 0.0, "end": 1.0}, {"speaker": "b", "start": 1.2, "end": 2.0}]
    data = of(MergeAlignmentDiarizationStage(), segments=segments, alignment=timed("one two three four"))
    assert [one["text"] for one in data["segments"]] == ["one two", "three four"]
    assert data["segments"][1]["words"][0] == {"word": "three", "start": 1.0, "end": 1.5}
    assert of(MergeAlignmentDiarizationStage(), segments=[], alignment=timed("one"))["segments"] == []


def test_segments_for_synthesis_and_for_recognition() -> None:
    first = timed("so it goes. and then he said a thing. it was late", 1.0)
    second = timed("yes it was.", 1.0, begin=13.0)
    segments = [
        {"speaker": "a", "start": 0, "end": 12, "words": first},
        {"speaker": "b", "start": 13, "end": 16, "words": second},
    ]
    made = of(PrepareModuleSegmentsStage("tts", 2.0, 9.0), segments=segments)["segments"]
    assert [one["text"] for one in made] == ["so it goes. and then he said a thing.", "it was late", "yes it was."]
    assert [one["speaker"] for one in made] == ["a", "a", "b"]
    assert all(2 <= one["end"] - one["start"] <= 9 for one in made)
    joined = of(PrepareModuleSegmentsStage("asr", 2.0, 30.0), segments=segments)["segments"]
    assert [one["speaker"] for one in joined] == ["a,b"]
    only = of(PrepareModuleSegmentsStage("tts", 2.0, 9.0, punctuation_split_only=True), segments=segments)["segments"]
    assert [one["text"] for one in only] == ["so it goes. and then he said a thing.", "yes it was."]
    with pytest.raises(ValueError, match="module is 'x'"):
        PrepareModuleSegmentsStage("x")


def test_segments_that_overlap_are_left_out() -> None:
    segments = [segment(0, 2), segment(1.8, 4), segment(5, 9), segment(6, 7), segment(8.9, 10), segment(11, 12, " ")]
    data = of(OverlapFilterStage(0.5), segments=segments)
    assert [one["start"] for one in data["segments"]] == [0, 1.8, 8.9]
    assert data["segments_dropped"] == 3


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=12), st.integers(1, 4))
def test_overlaps_are_those_of_all_pairs(spans: list[tuple[int, int]], least: int) -> None:
    made = [segment(start, start + size) for start, size in spans]
    segments = sorted(made, key=lambda one: (one["start"], one["end"]))
    expected = set()
    for one, a in enumerate(segments):
        for two, b in enumerate(segments):
            shared = min(a["end"], b["end"]) - max(a["start"], b["start"])
            within = a["start"] <= b["start"] and b["end"] <= a["end"]
            if one != two and shared > 0 and (shared >= least or within):
                expected |= {one, two}
    assert overlapping_segments(segments, least) == expected


def test_segments_are_packed_into_snippets() -> None:
    segments = [segment(0, 4), segment(5, 9), segment(10, 14), segment(50, 53), segment(60, 90), segment(99, 99.2)]
    plan = of(SnippetCutPlannerStage(10.0, 0.5, 30.0), segments=segments)["snippet_plan"]
    assert [(one["start"], one["end"]) for one in plan] == [(0, 9), (10, 14), (50, 53)]


def test_snippets_that_go_in_circles_are_left_out() -> None:
    plan = [{"segments": [segment(0, 1, "a b " * 5)]}, {"segments": [segment(0, 1, "a b c d e f")]}]
    kept = of(SnippetRepetitionFilterStage(ngram_n=2, ngram_max_count=3), snippet_plan=plan)["snippet_plan"]
    assert kept == plan[1:]


def test_long_recordings_become_archives_of_snippets(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "talk.1.wav", np.linspace(-0.5, 0.5, 2 * 30 * 8000).reshape(-1, 2), 8000)
    segments = [segment(0, 4, "a", words=timed("a", 4)), segment(5, 9.5, "b"), segment(20, 26, "c")]
    row = {"audio_filepath": "/elsewhere/talk.1.wav", "id": "t.1", "segments": segments, "alignment": [1]}
    manifest = write_manifest_file(tmp_path / "in.jsonl", [row])
    settings: dict[str, Any] = {
        "input_manifest": manifest, "audio_dir": str(tmp_path), "output_dir": str(tmp_path / "out"),
        "max_duration_sec": 12.0,
    }  # fmt: skip
    dry = build_audio_pretrain_pipeline(**settings, output_manifest_path=str(tmp_path / "m.jsonl"), dry_run=True)
    dry.run(LocalExecutor(num_workers=0))
    planned = read_manifest_file(tmp_path / "m.jsonl")
    assert [one["snippet_id"] for one in planned] == ["t_1-0_000-9_500", "t_1-20_000-26_000"]
    assert [(one["offset"], one["duration"], one["text"]) for one in planned] == [(0, 9.5, "a b"), (20, 6, "c")]
    assert planned[1]["segments"][0]["start"] == 0
    assert "alignment" not in planned[0]
    build_audio_pretrain_pipeline(**settings).run(LocalExecutor(num_workers=0))
    stages: list[Any] = [AudioWebDatasetReader(str(tmp_path / "out"))]
    batches = Pipeline("read", stages=stages).run(LocalExecutor(num_workers=0))
    rows = [one for batch in batches for one in batch.to_rows()]
    told = [json.loads(one["metadata"]) if isinstance(one["metadata"], str) else one["metadata"] for one in rows]
    assert [one["snippet_id"] for one in told] == [one["snippet_id"] for one in planned]
    sound, rate = soundfile.read(io.BytesIO(rows[1]["audio"]))
    assert (rate, len(sound), sound.ndim) == (RATE, 6 * RATE, 1)


def test_ids_of_snippets_are_names_of_files() -> None:
    assert snippet_id("a/b.c", 11.708, 13.97) == "a_b_c-11_708-13_970"
