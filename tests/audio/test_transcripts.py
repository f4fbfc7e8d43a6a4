"""Transcripts: error rates, filters, and stages that compare and clean them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import LocalExecutor, Pipeline
from gristmill.audio import (
    AudioBatch,
    AudioScore,
    AudioScoreFilter,
    ComputeWERStage,
    GetPairwiseWerStage,
    ManifestReader,
    ManifestWriterStage,
    NormaliseTranscriptStage,
    RegexSubstitutionStage,
    SelectBestPredictionStage,
    TranscriptAlphabetFilter,
    TranscriptCERFilter,
    TranscriptCharRateFilter,
    TranscriptEdgeErrorFilter,
    TranscriptFilter,
    TranscriptHallucinationFilter,
    TranscriptRepetitionFilter,
    TranscriptWERFilter,
    TranscriptWordMatchFilter,
    TranscriptWordRateFilter,
    WhisperHallucinationStage,
)
from gristmill.audio.transcripts import error_rates
from gristmill.audio.transcripts.error_rates import character_error_rates, plain_words, word_error_rates
from gristmill.core.errors import ColumnError, InputError
from tests.audio.sound_fixtures import read_manifest_file, write_manifest_file

SAID = "he was not an ill disposed young man"


def row(text: str | None, pred: str | None = None, duration: float | None = 2.0) -> dict[str, Any]:
    return {"text": text, "pred_text": pred, "duration": duration}


TABLE: list[tuple[TranscriptFilter, dict[str, Any], float | None, bool]] = [
    (TranscriptCharRateFilter(1, 25), row("ab cd"), 2.0, True),
    (TranscriptCharRateFilter(1, 25), row("x" * 60), 30.0, False),
    (TranscriptCharRateFilter(1, 25), row("  "), 0.0, False),
    (TranscriptCharRateFilter(0, 25), row(None), 0.0, True),
    (TranscriptCharRateFilter(1, 25), row("ab", duration=None), None, False),
    (TranscriptCharRateFilter(1, 25), row("ab", duration=0.0), None, False),
    (TranscriptWordRateFilter(0.5, 6), row("one two  three"), 1.5, True),
    (TranscriptWordRateFilter(0.5, 6), row("a " * 20), 10.0, False),
    (TranscriptWERFilter(25), row(SAID, "He was not an ill-disposed young man!"), 0.0, True),
    (TranscriptWERFilter(25), row(SAID, "he was not a disposed young men"), 37.5, False),
    (TranscriptWERFilter(25, plain=False), row("He was.", "he was"), 100.0, False),
    (TranscriptWERFilter(25), row("", "words"), 100.0, False),
    (TranscriptWERFilter(25), row("", None), 0.0, True),
    (TranscriptWERFilter(25), row(None, " "), 0.0, True),
    (TranscriptWERFilter(25), row("two words", None), 100.0, False),
    (TranscriptWERFilter(250), row("one", "it is three"), 300.0, False),
    (TranscriptCERFilter(30), row("abcd", "abce"), 25.0, True),
    (TranscriptCERFilter(30), row("", "x"), 100.0, False),
    (TranscriptEdgeErrorFilter(5), row(SAID, SAID), 0.0, True),
    (TranscriptEdgeErrorFilter(5), row(SAID, "long before that " + SAID), 16.0, False),
    (TranscriptEdgeErrorFilter(5), row(SAID, SAID + " or"), 2.0, True),
    (TranscriptEdgeErrorFilter(5), row(SAID, "quite another"), float(len(SAID)), False),
    (TranscriptEdgeErrorFilter(5), row("", ""), 0.0, True),
    (TranscriptWordMatchFilter(50), row("a b c d", "b x d"), 50.0, True),
    (TranscriptWordMatchFilter(50), row("a b c d", "d c"), 25.0, False),
    (TranscriptWordMatchFilter(50), row("", ""), 100.0, True),
    (TranscriptWordMatchFilter(50), row("", "a"), 0.0, False),
    (TranscriptAlphabetFilter("abc"), row("ab ca"), 0.0, True),
    (TranscriptAlphabetFilter("abc"), row("ab cÿ"), 0.25, False),
    (TranscriptAlphabetFilter("abc"), row(""), 0.0, True),
    (TranscriptRepetitionFilter(0.3, 2), row("one two one two one two"), 0.6, False),
    (TranscriptRepetitionFilter(0.3, 2), row(SAID), 0.0, True),
    (TranscriptRepetitionFilter(0.3, 2), row(None), 0.0, True),
    (TranscriptHallucinationFilter(), row("", SAID), 0.0, True),
    (TranscriptHallucinationFilter(), row("", "no no no no no no"), 1.0, False),
    (TranscriptHallucinationFilter(), row("", "Thank you for watching!"), 1.0, False),
    (TranscriptHallucinationFilter(), row("", SAID, 0.2), 1.0, False),
    (TranscriptHallucinationFilter(), row("", "a " + "b" * 30), 1.0, False),
    (TranscriptHallucinationFilter(phrases=["an ill"]), row("", "Thank you for watching!"), 0.0, True),
    (TranscriptHallucinationFilter(), row("", None), 0.0, True),
]


@pytest.mark.parametrize(("tool", "data", "score", "kept"), TABLE)
def test_a_filter_scores_and_decides(
    tool: TranscriptFilter, data: dict[str, Any], score: float | None, kept: bool
) -> None:
    schema = pa.schema([("text", pa.string()), ("pred_text", pa.string()), ("duration", pa.float64())])
    batch = AudioBatch(pa.Table.from_pylist([data], schema))
    [found] = AudioScore(tool, "score").process(batch).to_rows()
    assert found["score"] == (score if score is None else pytest.approx(score))
    assert AudioScoreFilter(tool).process(batch).num_items == int(kept)
    assert AudioScore(tool, "score").process(batch.slice(0, 0)).num_items == 0


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (TranscriptCharRateFilter, {"min_rate": 9, "max_rate": 1}, "leaves nothing"),
        (TranscriptWERFilter, {"max_wer": -1}, "0 or more"),
        (TranscriptAlphabetFilter, {"alphabet": " "}, "characters that texts may have"),
        (TranscriptRepetitionFilter, {"ngram": 0}, "1 or more"),
        (RegexSubstitutionStage, {}, "either rules or regex_params_yaml"),
        (RegexSubstitutionStage, {"rules": [{"pattern": "("}]}, "rule 1 .* must have pattern and repl"),
        (RegexSubstitutionStage, {"rules": [{"pattern": "(", "repl": ""}]}, r"rule 1: pattern '\('"),
        (RegexSubstitutionStage, {"rules": [{"pattern": "a", "repl": r"\2"}]}, "rule 1: pattern 'a'"),
        (RegexSubstitutionStage, {"rules": [{"pattern": "a", "repl": "", "count": -1}]}, "count is -1"),
        (ComputeWERStage, {"edge_length": 0}, "edge_length is 0"),
        (SelectBestPredictionStage, {"force_reference": True}, "reference_text_key is missing"),
    ],
)
def test_wrong_parameters_are_refused(kind: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, InputError), match=message):
        kind(**arguments)


def test_a_column_that_is_missing_or_no_text_is_named() -> None:
    with pytest.raises(ColumnError, match="pred_text.*Did you mean 'pred_txt'"):
        AudioScoreFilter(TranscriptWERFilter()).process(AudioBatch([{"text": "a", "pred_txt": "b"}]))
    with pytest.raises(ColumnError, match="'text' is int64, must be text"):
        GetPairwiseWerStage().process(AudioBatch([{"text": 1, "pred_text": "b"}]))


WORDS = st.lists(st.sampled_from(["a", "bc", "def", "é", "日本"]), max_size=8).map(" ".join)


@given(st.lists(st.tuples(WORDS.filter(bool), WORDS), min_size=1, max_size=5))
def test_error_rates_are_those_of_jiwer(pairs: list[tuple[str, str]]) -> None:
    import jiwer

    references, others = zip(*pairs, strict=True)
    wer, cer = word_error_rates(references, others), character_error_rates(references, others)
    assert wer == pytest.approx([100 * jiwer.wer(one, two) for one, two in pairs])
    assert cer == pytest.approx([100 * jiwer.cer(one, two) for one, two in pairs])


SPACES = " \t\n\x0b\x1c\x85\u00a0\u2003\u3000"
MANY_WORDS = st.lists(
    st.sampled_from(["a", "b", "Wort", "中文", "don't", "é", "e\u0301", "\U0001f600", "x" * 70]), max_size=200
)


@given(st.lists(st.tuples(MANY_WORDS, MANY_WORDS, st.sampled_from(SPACES)), min_size=1, max_size=5))
def test_the_kernel_counts_words_as_the_definition(pairs: list[tuple[list[str], list[str], str]]) -> None:
    assert error_rates.kernels is not None
    one, two = ([space + space.join(pair[at]) for *pair, space in pairs] for at in (0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(error_rates, "kernels", None)
        expected = word_error_rates(one, two)
    assert word_error_rates(one, two) == pytest.approx(expected)
    assert word_error_rates(pa.array(one), pa.array(two).cast(pa.large_string())) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("Don’t stop — “now”!", "don't stop now"),
        ("'quoted' rock 'n' roll's", "quoted rock n roll's"),
        ("हिन्दी, में।", "हिन्दी में"),
        ("ﬁve € 20%", "five 20"),
        (None, ""),
    ],
)
def test_texts_are_made_plain(text: str | None, plain: str) -> None:
    assert plain_words(text) == plain


def test_normalising_keeps_null() -> None:
    stage = NormaliseTranscriptStage(output_text_key="plain")
    assert [one["plain"] for one in stage.process(AudioBatch([{"text": "A, b"}, {"text": None}])).to_rows()] == [
        "a b",
        None,
    ]


def test_pairwise_rates_are_percent() -> None:
    rows = [row(SAID, SAID), row("a b c", "a b"), row("", ""), row(None, "x")]
    found = GetPairwiseWerStage().process(AudioBatch(rows)).to_rows()
    assert [one["wer_pct"] for one in found] == [0.0, 33.33, 0.0, 100.0]


def test_metrics_of_rows() -> None:
    stage = ComputeWERStage(compute_pnc_wer=True, edge_length=4)
    batch = AudioBatch(
        [{"text": "One two tree.", "text_ref": "one two three", "duration": 2.0}, row("a") | {"text_ref": " "}]
    )
    first, second = (one["metrics"] for one in stage.process(batch).to_rows())
    assert first["wer"] == pytest.approx(
        {"wer": 1 / 3, "tokens": 3, "ins_rate": 0.0, "del_rate": 0.0, "sub_rate": 1 / 3}
    )
    assert (first["cer"]["cer"], first["start_cer"]["cer"]) == (pytest.approx(1 / 13), 0.0)
    assert first["end_cer"]["cer"] > 0
    assert first["wer_pnc"]["wer"] == pytest.approx(2 / 3)
    assert (first["word_rate"], first["char_rate"]) == (1.5, 5.5)
    assert (second["wer"], second["metric_skip_reason"]) == (None, "empty_reference")


def test_metrics_of_segments_and_languages_without_spaces() -> None:
    segments = [{"start": 0.0, "end": 2.0, "text": "日本国", "text_ref": "日本語"}]
    batch = AudioBatch([{"segments": segments}, {"segments": None}])
    found = ComputeWERStage(language="ja").process(batch).to_rows()
    assert found[0]["segments"][0]["metrics"]["wer"]["wer"] == pytest.approx(1 / 3)
    assert found[1]["segments"] is None


def test_a_normalizer_is_given_pieces() -> None:
    given_texts: list[str] = []

    def spelled(text: str) -> str:
        given_texts.append(text)
        return text.replace("3", "three")

    stage = ComputeWERStage(num_words_threshold=2, normalizer=spelled)
    [found] = stage.process(AudioBatch([{"text": "1 2 3", "text_ref": "1 2 three"}])).to_rows()
    assert found["metrics"]["wer"]["wer"] == 0
    assert "1 2" in given_texts


def test_regular_expressions_from_a_file_and_from_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text('- {pattern: "[^a-z ]", repl: ""}\n- {pattern: " uh ", repl: " ", count: 1}\n')
    rules = [{"pattern": "[^a-z ]", "repl": ""}, {"pattern": " uh ", "repl": " ", "count": 1}]
    rows = [
        {"pred_text": text, "_skipme": flag} for text, flag in [("uh  yes!", ""), ("?!", ""), (None, ""), ("!", "old")]
    ]
    for stage in (RegexSubstitutionStage(str(tmp_path / "rules.yaml")), RegexSubstitutionStage(rules=rules)):
        stage.setup()
        found = [(one["text"], one["_skipme"]) for one in stage.process(AudioBatch(rows)).to_rows()]
        assert found == [("yes", ""), ("", "Empty after regex cleaning"), (None, ""), ("!", "old")]
    (tmp_path / "rules.yaml").write_text("pattern: x")
    with pytest.raises(InputError, match=r"rules.yaml: dict, must be a list"):
        RegexSubstitutionStage(str(tmp_path / "rules.yaml")).setup()


def test_hallucinations_are_flagged_and_flags_taken_away(tmp_path: Path) -> None:
    (tmp_path / "phrases.txt").write_text("Amen to that\n\n")
    rows = [
        {"pred_text": text, "duration": 3.0, "_skipme": flag}
        for text, flag in [
            ("no no no no", ""),
            ("amen to that, brothers", ""),
            (SAID, "Hallucination:old"),
            (" ", ""),
            ("no no no no", "lang"),
        ]
    ]
    stage = WhisperHallucinationStage(str(tmp_path / "phrases.txt"))
    stage.setup()
    found = stage.process(AudioBatch(rows)).to_rows()
    name = f"Hallucination:{stage.name}"
    assert [one["_skipme"] for one in found] == [name, name, "Hallucination:old", "", "lang"]
    notes = [one["additional_notes"][stage.name] for one in found]
    assert notes == [
        "hallucination (repeated_ngrams)",
        "hallucination (phrase_match)",
        "skipped (flagged)",
        "skipped (empty text)",
        "skipped (flagged)",
    ]
    again = (
        WhisperHallucinationStage(overwrite=True, recovery_value="Recovered:ASR").process(AudioBatch(rows)).to_rows()
    )
    assert [one["_skipme"] for one in again][2:] == ["", "", "lang"]
    assert again[2]["additional_notes"][stage.name] == "recovered:asr"


def test_the_best_prediction_is_selected() -> None:
    def case(flag: str = "", first: str = "a b", second: str = "a c", note: str = "", seconds: float = 3.0) -> Any:
        notes = {"check": note}
        return {
            "primary_model_prediction": first,
            "fallback_model_prediction": second,
            "reference": "ref",
            "_skipme": flag,
            "additional_notes": notes,
            "duration": seconds,
        }

    rows = [
        case(),
        case("Hallucination:x"),
        case("Hallucination:x", second="a b"),
        case(note="Recovered:ASR"),
        case(seconds=0.5),
    ]

    def chosen(**arguments: Any) -> list[tuple[str, str]]:
        found = SelectBestPredictionStage(**arguments).process(AudioBatch(rows)).to_rows()
        return [(one["best_prediction"], one["_skipme"]) for one in found]

    assert chosen() == [("a b", ""), ("a b", "Hallucination:x"), ("a b", ""), ("a c", ""), ("a b", "")]
    reference = chosen(reference_text_key="reference", use_reference_on_hallucination=True)
    assert reference == [("a b", ""), ("ref", ""), ("ref", ""), ("a c", ""), ("a b", "")]
    assert chosen(reference_text_key="reference", primary_model_type="qwen_omni")[4] == ("ref", "")
    assert set(chosen(reference_text_key="reference", force_reference=True)) == {("ref", "")}
    assert SelectBestPredictionStage().process(AudioBatch(rows).slice(0, 0)).num_items == 0


def test_a_run_drops_rows_for_a_reason_and_decodes_nothing(tmp_path: Path) -> None:
    lines = [
        {"audio_filepath": f"missing{at}.wav", "duration": 2.0, "text": SAID, "pred_text": pred}
        for at, pred in enumerate([SAID, "quite another sentence", SAID + " yes"])
    ]
    manifest = write_manifest_file(tmp_path / "in.jsonl", lines)
    out = tmp_path / "out.jsonl"
    stages = [
        ManifestReader(str(manifest)),
        AudioScoreFilter([TranscriptWordRateFilter(), TranscriptWERFilter(30)], ["rate", "wer"]),
        ManifestWriterStage(str(out)),
    ]
    result = Pipeline("transcripts", stages=stages).run(LocalExecutor(num_workers=0))
    assert [one["wer"] for one in read_manifest_file(out)] == [0.0, 12.5]
    scored = next(stage for stage in result.summary().stages if "TranscriptWERFilter" in stage.name)
    assert (scored.rows_in, scored.rows_out, scored.quarantined) == (3, 2, 0)
