"""What-if equals a rerun, or says that it does not know: for every filter of the catalogue and every parameter."""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.audio import AudioScoreFilter, ManifestReader
from gristmill.core.errors import GristmillError
from gristmill.core.records.value_identity import describe_value
from gristmill.core.stage import WorkerMetadata
from gristmill.image import ImageDirectoryReader, ImageScoreFilter
from gristmill.recipes.stage_catalogue import catalogue
from gristmill.report.run_records import Records
from gristmill.report.whatif import whatif
from gristmill.text import JsonlReader, ScoreFilter
from gristmill.video import VideoReader, VideoScoreFilter
from tests.image.photo_fixtures import FOLDER, blurred, letterboxed, noise, photo, saved, tiled

FILTERS = {name: entry.cls for name, entry in sorted(catalogue().items()) if entry.kind == "filter"}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "C4BadWordsFilter": {"words": ["grist", "stone"]},
    "FlaggedWordsFilter": {"words": ["grist", "stone"]},
    "GeneralCommentToCodeFilter": {"language": "text/x-python"},
    "PerExtensionFilter": {"lang": "python", "extension": "py"},
    "RegexFilter": {"pattern": "mill", "min_matches": 1, "max_matches": 9},
    "TranscriptAlphabetFilter": {"alphabet": "abcdefghijklmnopqrstuvwxyz"},
    "SubstringFilter": {"substring": "The", "position": "prefix"},
    "UrlBlocklistFilter": {"words": ["stone", "wheel"], "soft_words": ["mill", "grist"], "subwords": ["xx"]},
}
"""Of filters that need some. Those that are not here and need some read models or functions."""

NEED_FILES = {
    "ClassifierFilter",
    "FastTextLangId",
    "FastTextQualityFilter",
    "LambdaFilter",
    "TokenCountFilter",
    "TokenizerFertilityFilter",
    "UnigramLogProbFilter",
    *("SIGMOSFilter", "UTMOSFilter", "PerplexityFilter", "VideoImageFilter"),
    "DNSMOSFilter",  # needs none, but half a minute
}
VALUES = (
    *(0, 1, 2, 4, 9, 30, 200, 5000, 30_000, -1.0, 0.02, 0.1, 0.31, 0.5, 0.9, 1.0, 1.5, 6.0, True, False, None),
    *("ja", "suffix", "stone", "text/x-java", "cpp", "strict", "EMAIL_ADDRESS", "png", "\n\n", "max"),
    *(["the", "mill"], ["png"], ["EMAIL_ADDRESS"], {"2": 0.05, "3": 0.5}, {"5": 0.5}, {"2": 0.5}),
)
URLS = [f"http://a.com/{path}" for path in ("", "stone", "mill-grist", "mill", "axxb", "stone-mill-grist-axxb", "the")]
MOST_VALUES = 4
MISSING = (GristmillError, TypeError, IndexError, ArithmeticError, OSError, AttributeError)
"""What a filter raises that needs what is not here."""
PHOTO = sorted(FOLDER.glob("*.jpg"))[0].stem

NOT_KNOWN: dict[str, list[str]] = {
    "AudioBandwidthFilter": ["frequency_threshold"],
    "AudioSilenceFilter": ["silence_db"],
    "C4BadWordsFilter": ["keep_fraction", "lang", "seed", "words"],
    "C4ParagraphFilter": ["line_delimiter", "min_paragraph_len"],
    "C4QualityFilter": [
        "filter_javascript",
        "filter_no_terminal_punct",
        "filter_policy",
        "max_word_length",
        "min_words_per_line",
        "remove_citations",
    ],
    "CommonEnglishWordsFilter": ["min_num_common_words", "stop_at_false"],
    "SpeechShareFilter": ["probability"],
    "TranscriptAlphabetFilter": ["alphabet"],
    "TranscriptHallucinationFilter": ["phrases"],
    "TranscriptRepetitionFilter": ["ngram"],
    **{f"Transcript{name}Filter": ["plain"] for name in ("CER", "EdgeError", "WER", "WordMatch")},
    "FineWebQualityFilter": ["short_line_length"],
    "FlaggedWordsFilter": ["lang", "words"],
    "GeneralCommentToCodeFilter": ["language"],
    "GopherQualityFilter": ["language", "stop_words"],
    "GopherRepetitionFilter": ["dup_n_grams", "top_n_grams"],
    "HTMLBoilerplateFilter": ["min_lang_content_num_chars"],
    "HistogramFilter": ["cache_dir", "lang", "threshold_char"],
    "LongWordFilter": ["lang"],
    "MeanWordLengthFilter": ["lang"],
    "PiiFilter": ["private_ips"],
    "RegexFilter": ["pattern"],
    "RepeatingDuplicateNGramsFilter": ["lang", "n"],
    "RepeatingTopNGramsFilter": ["lang", "n"],
    "StopWordRatioFilter": ["lang"],
    "SubstringFilter": ["position", "substring"],
    "SymbolsToWordsFilter": ["lang"],
    "VideoBlackFilter": ["black_below", "fps"],
    "VideoBlurFilter": ["fps", "reduction"],
    "VideoBrightnessFilter": ["fps", "reduction"],
    "VideoFrozenFilter": ["fps", "frozen_below"],
    "VideoLetterboxFilter": ["fps", "reduction"],
    "VideoTextFilter": ["fps", "reduction"],
    "VideoWatermarkFilter": ["fps", "reduction"],
    "UrlBlocklistFilter": ["domains", "soft_words", "subwords", "urls", "words"],
    "PornographicUrlsFilter": ["url_regex"],
    "UrlsFilter": ["url_regex"],
    "WordCountFilter": ["lang"],
    "WordsWithoutAlphabetsFilter": ["lang"],
    "XMLHeaderFilter": ["char_prefix_search_length"],
}
"""The parameters that scores depend on: with some value of them what-if says that it does not know. It is exact for
all others."""

NO_OTHER_VALUE: dict[str, list[str]] = {
    "PerExtensionFilter": ["lang", "extension", "metadata_file"],
    "PiiFilter": ["entities", "countries"],
    "StopWordRatioFilter": ["words"],
}
"""Parameters for which there is no other value here that the filter takes."""

_PIECES = (
    *(
        "the mill of the stone ",
        "Grist. ",
        "Is it?\n",
        "and to have with that\n",
        "- a bullet\n",
        "more ...\n",
        "# 12 ( ) ",
    ),
    *(
        "lorem ipsum ",
        "{ } ",
        "\n\n",
        "it was it was it was it was ",
        "日本語の文。",
        "http://mill.com/xxx ",
        "a@mill.com ",
    ),
    *(
        "import os  # stone\n",
        "<?xml version=1?>\n",
        "terms of use\n",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ",
        "1234 5678 ",
    ),
)


def documents() -> Iterator[str]:
    drawn = random.Random(7)
    yield from ("", " ", "The mill.")
    for length in (1, 2, 4, 8, 15, 30, 60, 90) * 5:
        few = drawn.sample(_PIECES, drawn.randint(1, 6))
        yield "".join(drawn.choice(few) for _ in range(length))


def pictures(place: Path) -> None:
    place.mkdir()
    plain = photo(PHOTO).resize((128, 128))
    shown = [plain, blurred(plain), letterboxed(plain), tiled(plain), noise().resize((64, 90)), plain.convert("L")]
    for number, picture in enumerate(shown):
        for form in ("png", "jpeg"):
            (place / f"{number}.{form}").write_bytes(saved(picture, form.upper()))


TRANSCRIPTS = (
    "the mill grinds", "", "the mill grinds the corn of the miller", "the mill the mill the mill the mill the mill",
    "Mühle, 24 Räder", "grain " * 30, "stone", "the miller's corn; the mill's stone and one more thing that was said",
)  # fmt: skip
HEARD = ("Audio", "Transcript", "DNSMOS", "SpeechShare")


def recordings(place: Path) -> str:
    from tests.audio.sound_fixtures import noise, tone, wav, write_manifest_file

    loud, quiet = tone(1.5, level=0.9), tone(2.0, level=0.01)
    stereo, silent = tone(1.0, channels=2), tone(1.0, level=0.0)
    sounds = [loud * 1.5, quiet, stereo, np.concatenate([tone(0.5), silent]), noise(0.7), noise(1.2, level=0.001) + 0.1]
    rows = []
    for number, (sound, rate) in enumerate([(sound, rate) for sound in sounds for rate in (8000, 16000)]):
        (place / f"{number}.wav").write_bytes(wav(sound, rate))
        said, heard = (TRANSCRIPTS[(number + step) % len(TRANSCRIPTS)] for step in (0, number % 3 == 0))
        row = {"id": str(number), "audio_filepath": str(place / f"{number}.wav"), "duration": 0.5 + number / 4}
        rows.append({**row, "text": said, "pred_text": heard.upper() if number % 2 else heard})
    return write_manifest_file(place / "sounds.jsonl", rows)


def films(place: Path) -> None:
    from tests.video.film_fixtures import film, pictures

    moving = list(pictures(36))
    black = [picture // 40 for picture in moving]
    framed = [picture.copy() for picture in moving]
    for picture in framed:
        picture[:30], picture[-30:] = 0, 0
    for number, shown in enumerate((moving, black, framed, moving[:1] * 36, black[:9] + moving[9:])):
        film(place / f"{number}.mp4", len(shown), rate=12, frames=shown)
    film(place / "wide.mp4", 60, (320, 64), shots=3)
    film(place / "tall.mp4", 50, (64, 200), rate=25)
    for number in range(6):
        film(place / f"shots{number}.mp4", 12 * (number + 1), rate=12, shots=number + 1)


def stages(name: str, arguments: dict[str, Any], place: Path) -> list[Any]:
    tool = FILTERS[name](**arguments)
    if name.startswith("Image"):
        if not (place / "pictures").exists():
            pictures(place / "pictures")
        return [ImageDirectoryReader(str(place / "pictures")), ImageScoreFilter(tool)]
    if name.startswith("Video"):
        pytest.importorskip("av")
        if not (place / "films").exists():
            films(place / "films")
        return [VideoReader(str(place / "films")), VideoScoreFilter(tool)]
    if name.startswith(HEARD):
        pytest.importorskip("soundfile")
        return [ManifestReader(recordings(place)), AudioScoreFilter(tool)]
    if not (place / "in.jsonl").exists():
        lines = [{"id": row, "text": text, "url": URLS[row % len(URLS)]} for row, text in enumerate(documents())]
        (place / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    column = "url" if name == "UrlBlocklistFilter" else "text"
    return [JsonlReader(place / "in.jsonl"), ScoreFilter(tool, column)]


@cache
def rows(place: Path, name: str) -> list[Any]:
    """The rows that a run of this filter reads."""
    reader = stages(name, ARGUMENTS.get(name, {}), place)[0]
    return list(Pipeline("rows", stages=[reader]).run(LocalExecutor(0)))


def kept_by(name: str, arguments: dict[str, Any], place: Path) -> int:
    stage = stages(name, arguments, place)[1]
    stage.setup(WorkerMetadata())
    kept = sum(stage.decide(task).keep.true_count for task in rows(place, name))
    stage.teardown()
    return kept


def other_values(kind: type, parameter: inspect.Parameter, arguments: dict[str, Any]) -> list[Any]:
    """Values that the filter takes, other than its own."""
    own = arguments.get(parameter.name, parameter.default)
    wanted = (int, float) if type(own) in (int, float) else type(own)
    if isinstance(own, list | tuple | frozenset):
        wanted = list
    elif own is None:
        text = str(parameter.annotation)
        wanted = list if "Sequence" in text else (int, float) if "int" in text or "float" in text else str
    found = []
    for value in VALUES:
        alike = value is None or (isinstance(value, wanted) and (type(value) is bool) == (wanted is bool))
        if alike and describe_value(value) != describe_value(own):
            try:
                kind(**{**arguments, parameter.name: value})
                found.append(value)
            except (TypeError, ValueError, AttributeError, KeyError):
                continue
    random.Random(parameter.name).shuffle(found)
    return found


@cache
def answers(name: str, place: Path) -> dict[str, list[tuple[Any, int | None, int | None]]]:
    """For each parameter and value the rows that what-if says would be kept, None if it does not know, and those that a
    run keeps."""
    arguments = ARGUMENTS.get(name, {})
    Pipeline("one", stages=stages(name, arguments, place)).run(LocalExecutor(0), place / "run", scores=True)
    records = Records(str(place / "run"))
    found = {}
    for parameter in inspect.signature(FILTERS[name]).parameters.values():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) or parameter.name.endswith("_key"):
            continue
        result = found.setdefault(parameter.name, [])
        for value in other_values(FILTERS[name], parameter, arguments):
            try:
                truth = kept_by(name, {**arguments, parameter.name: value}, place)
            except (
                GristmillError,
                TypeError,
                IndexError,
                ArithmeticError,
                OSError,
                AttributeError,
            ):  # it needs what is not here
                continue
            answer = whatif(records, {f"{name}.{parameter.name}": value}, 0)
            if len(result) == MOST_VALUES:
                break
            result.append((value, answer.after.rows if answer.exact else None, truth))
    return found


@pytest.mark.parametrize("name", sorted(FILTERS.keys() - NEED_FILES))
def test_whatif_is_what_a_run_keeps_or_says_that_it_is_not_known(name: str, tmp_path: Path) -> None:
    found = answers(name, tmp_path)
    for parameter, result in found.items():
        for value, answer, truth in result:
            assert answer in (None, truth), f"{name}.{parameter}={value!r}"
    unknown = [parameter for parameter, result in found.items() if any(answer is None for _, answer, _ in result)]
    assert sorted(unknown) == sorted(NOT_KNOWN.get(name, []))
    assert [parameter for parameter, result in found.items() if not result] == NO_OTHER_VALUE.get(name, [])


def test_filters_that_need_files_are_those_that_cannot_be_made_without() -> None:
    assert FILTERS.keys() > NEED_FILES
    assert NOT_KNOWN.keys() | NO_OTHER_VALUE.keys() | ARGUMENTS.keys() <= FILTERS.keys()
