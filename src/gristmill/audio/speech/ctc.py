"""OnnxCTCASR: a recogniser in an ONNX file that gives a distribution over characters or pieces for each moment (CTC).

What is given up: a language model. The most probable piece of each moment is taken.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.audio.batch import BadAudio
from gristmill.audio.speech.package_weights import RATE, session
from gristmill.audio.speech.recognisers import ASRAdapter, Transcription, Word
from gristmill.core.errors import InputError, require

if TYPE_CHECKING:
    from gristmill.audio.decode import Samples

_BETWEEN_WORDS = ("|", "▁", " ")


class OnnxCTCASR(ASRAdapter):
    """A CTC model in an ONNX file, such as an exported wav2vec 2.0: it takes samples at 16 kHz, of shape (1, samples),
    and gives scores of shape (1, moments, pieces).

    `vocabulary` lists the pieces in the order of the scores: itself, or a file of them, one per line, or a JSON file
    of pieces and their numbers. `|`, `▁` and spaces in pieces separate words; `blank` is the number of the piece that
    stands for nothing. With `normalise`, samples get mean 0 and variance 1 before.
    """

    def __init__(
        self,
        model_id: str,
        vocabulary: Sequence[str] | str | os.PathLike[str],
        blank: int = 0,
        normalise: bool = True,
    ) -> None:
        self.model_id, self.vocabulary, self.blank, self.normalise = str(model_id), vocabulary, blank, normalise
        self._pieces: list[str] = []
        self._model: Any = None

    def check(self) -> None:
        require("onnxruntime", "onnx", "recognising speech with an ONNX model")
        if not Path(self.model_id).is_file():
            raise InputError(f"{self.model_id}: there is no such file: give the path of a CTC model, as ONNX")
        _pieces_of(self.vocabulary)

    def setup(self, threads: int) -> None:
        self.check()
        self._pieces, self._model = _pieces_of(self.vocabulary), session(self.model_id, threads)

    def teardown(self) -> None:
        self._model = None

    def transcribe(
        self, clips: Sequence[Samples], languages: Sequence[str | None]
    ) -> Sequence[Transcription | BadAudio]:
        return [self._heard(clip, language) for clip, language in zip(clips, languages, strict=True)]

    def _heard(self, clip: Samples, language: str | None) -> Transcription:
        given = clip.astype(np.float32)
        if self.normalise:
            given = (given - given.mean()) / np.sqrt(given.var() + np.float32(1e-7))
        name = self._model.inputs[0].name
        [answer, *_] = self._model({name: given[None]}).values()
        scores = answer[0].astype(np.float64)
        scores -= scores.max(axis=1, keepdims=True)
        chances = np.exp(scores)
        chances /= chances.sum(axis=1, keepdims=True)
        best = chances.argmax(axis=1)
        starts = np.flatnonzero(np.diff(best, prepend=-1))
        step = len(clip) / RATE / len(best)
        said = self._words(best, starts, chances, step)
        return Transcription(" ".join(word.word for word in said), language, said)

    def _words(self, best: Any, starts: Any, chances: Any, step: float) -> list[Word]:
        words: list[Word] = []
        letters, first, last = "", 0.0, 0.0
        sure: list[float] = []
        ends = [*starts[1:].tolist(), len(best)]
        for start, end in zip(starts.tolist(), ends, strict=True):
            number = int(best[start])
            if number == self.blank or number >= len(self._pieces):
                continue
            piece = self._pieces[number]
            if piece.startswith(_BETWEEN_WORDS):
                if letters:
                    words.append(Word(first, last, letters, float(np.mean(sure))))
                letters, sure = "", []
                piece = piece[1:]
            if not piece:
                continue
            first, last = (first if letters else start * step), end * step
            letters += piece
            sure.append(float(chances[start:end, number].max()))
        if letters:
            words.append(Word(first, last, letters, float(np.mean(sure))))
        return words


def _pieces_of(vocabulary: Sequence[str] | str | os.PathLike[str]) -> list[str]:
    if not isinstance(vocabulary, str | os.PathLike):
        return [str(piece) for piece in vocabulary]
    path = Path(vocabulary)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: the vocabulary cannot be read: {error}") from error
    if path.suffix != ".json":
        return text.splitlines()
    numbers = json.loads(text)
    pieces = [""] * (max(numbers.values(), default=-1) + 1)
    for piece, number in numbers.items():
        pieces[number] = piece
    return pieces
