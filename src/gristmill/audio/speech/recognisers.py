"""What writes down what is said: the adapters of ASRStage, and how they are named.

    FasterWhisperASR      Whisper in CTranslate2, on a CPU, from a local directory (`whisper.py`)
    OpenAITranscription   a service with the interface `/v1/audio/transcriptions` (`transcription_service.py`)
    OnnxCTCASR            a model of characters or pieces in an ONNX file (`ctc.py`)
    TransformersASR       a model in a local directory, run by transformers and PyTorch
    NeMoASRAdapter        models of NVIDIA NeMo, where that is installed

Adapters are named by class, or by a path whose last part is the class: paths of NeMo Curator mean the adapter of that
name here. Nothing but adapters of Gristmill is imported by name.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gristmill.audio.batch import BadAudio
from gristmill.core.errors import MissingDependencyError, did_you_mean, require

if TYPE_CHECKING:
    from gristmill.audio.decode import Samples


class Word(NamedTuple):
    """A word, and when it is said: seconds of the clip. `probability` is None where it is not known."""

    start: float
    end: float
    word: str
    probability: float | None = None


class Transcription(NamedTuple):
    """What is said in a clip."""

    text: str
    language: str | None = None
    words: Sequence[Word] = ()


class ASRAdapter(ABC):
    """Something that writes down what is said. Constructors load nothing; `setup` does, in the worker."""

    def check(self) -> None:  # noqa: B027  (optional)
        """Raise if it is clear before the run that it cannot work."""

    def setup(self, threads: int) -> None:  # noqa: B027  (optional)
        """Load the model."""

    @abstractmethod
    def transcribe(
        self, clips: Sequence[Samples], languages: Sequence[str | None]
    ) -> Sequence[Transcription | BadAudio]:
        """What is said in each clip, samples at 16 kHz, or why that is not known. A language is a code such as "en";
        None: to be found."""

    def teardown(self) -> None:  # noqa: B027  (optional)
        """Let go of the model."""


class NeMoASRAdapter(ASRAdapter):
    """A model of NVIDIA NeMo, by name or from a .nemo file."""

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id
        self._model: Any = None

    def check(self) -> None:
        self._models()

    def _models(self) -> Any:
        try:
            nemo_asr = importlib.import_module("nemo.collections.asr")
        except ImportError as error:
            raise MissingDependencyError(
                "recognising speech with NeMo needs 'nemo_toolkit[asr]', which is not installed: pip install "
                "'nemo_toolkit[asr]', or use ASRStage with FasterWhisperASR, which runs on a CPU"
            ) from error
        return nemo_asr.models.ASRModel

    def setup(self, threads: int) -> None:
        local = self.model_id.endswith(".nemo")
        models = self._models()
        self._model = models.restore_from(self.model_id) if local else models.from_pretrained(self.model_id)

    def teardown(self) -> None:
        self._model = None

    def transcribe(
        self, clips: Sequence[Samples], languages: Sequence[str | None]
    ) -> Sequence[Transcription | BadAudio]:
        answers = self._model.transcribe(list(clips), batch_size=max(len(clips), 1), verbose=False)
        return [Transcription(one if isinstance(one, str) else one.text) for one in answers]


class TransformersASR(ASRAdapter):
    """A model for speech recognition from a local directory, run by transformers and PyTorch. Nothing is downloaded."""

    def __init__(self, model_id: str, generate_kwargs: Mapping[str, Any] | None = None) -> None:
        self.model_id, self.generate_kwargs = str(model_id), dict(generate_kwargs or {})
        self._pipe: Any = None

    def check(self) -> None:
        require("torch", "torch", "recognising speech with transformers")
        require("transformers", "torch", "recognising speech with transformers")

    def setup(self, threads: int) -> None:
        self.check()
        torch = require("torch", "torch", "recognising speech with transformers")
        transformers = require("transformers", "torch", "recognising speech with transformers")
        torch.set_num_threads(threads)
        model = {"model_kwargs": {"local_files_only": True}, "trust_remote_code": False, "device": "cpu"}
        self._pipe = transformers.pipeline("automatic-speech-recognition", model=self.model_id, **model)

    def teardown(self) -> None:
        self._pipe = None

    def transcribe(
        self, clips: Sequence[Samples], languages: Sequence[str | None]
    ) -> Sequence[Transcription | BadAudio]:
        return [self._heard(clip, language) for clip, language in zip(clips, languages, strict=True)]

    def _heard(self, clip: Samples, language: str | None) -> Transcription:
        settings = dict(self.generate_kwargs)
        if language and getattr(self._pipe.model.generation_config, "lang_to_id", None):
            settings["language"] = language
        given = {"raw": clip, "sampling_rate": self._pipe.feature_extractor.sampling_rate}
        heard = self._pipe(given, **({"generate_kwargs": settings} if settings else {}))
        return Transcription(str(heard["text"]).strip(), language)


ADAPTERS: Mapping[str, str] = {
    "FasterWhisperASR": "whisper",
    "NeMoASRAdapter": "recognisers",
    "OnnxCTCASR": "ctc",
    "OpenAITranscription": "transcription_service",
    "TransformersASR": "recognisers",
}
"""The adapters that can be named, and their modules."""


def adapter_of(
    stage: str, target: ASRAdapter | type[ASRAdapter] | str, model_id: str | None, settings: Mapping[str, Any]
) -> ASRAdapter:
    """The adapter that `ASRStage` is told to use: one, a class of them, or the name of a class."""
    if isinstance(target, ASRAdapter):
        if model_id is not None or settings:
            raise ValueError(f"{stage}: adapter_target is an adapter that has its settings: give no others")
        return target
    kind: Any = _named(stage, target) if isinstance(target, str) else target
    if not (isinstance(kind, type) and issubclass(kind, ASRAdapter)):
        raise TypeError(f"{stage}: adapter_target is {target!r}, must be one such as FasterWhisperASR(...)")
    if model_id is None:
        raise ValueError(f"{stage}: model_id is missing: name the model that {kind.__name__} runs")
    made: ASRAdapter = kind(model_id=model_id, **settings)  # type: ignore[call-arg]
    return made


def _named(stage: str, target: str) -> type[ASRAdapter]:
    name = target.rpartition(".")[2].rpartition(":")[2]
    if name not in ADAPTERS:
        raise ValueError(
            f"{stage}: adapter_target is {target!r}, must be one of {', '.join(ADAPTERS)}."
            f"{did_you_mean(name, ADAPTERS)} Give the class of one of your own; a server is asked by "
            "OpenAITranscription"
        )
    module = importlib.import_module(f"gristmill.audio.speech.{ADAPTERS[name]}")
    found: type[ASRAdapter] = getattr(module, name)
    return found
