"""Ratings of speech by models whose weights are given as ONNX files.

    UTMOSFilter     how natural speech sounds, from 1 to 5
    SIGMOSFilter    seven qualities of a recording: noise, reverb, loudness ..., from 1 to 5
    UTMOSFilterStage, SIGMOSFilterStage, BandFilterStage    the same as stages, under the names of NeMo Curator
    TorchSquimQualityMetricsStage   PESQ, STOI and SI-SDR, estimated without a reference

A recording is rated in windows of ten seconds, and its score is their mean, however long it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gristmill.audio.batch import AudioBatch
from gristmill.audio.filters import AudioBandwidthFilter
from gristmill.audio.score import AudioScore, AudioScoreFilter, heard_rows
from gristmill.audio.speech.package_weights import RATE, session
from gristmill.audio.speech.speech_filters import SpeechModelFilter
from gristmill.audio.transcripts.transcript_flags import nested, values_of
from gristmill.audio.waveforms import set_aside_row
from gristmill.core.errors import InputError, did_you_mean, require
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage

if TYPE_CHECKING:
    from gristmill.audio.batch import BadAudio
    from gristmill.audio.decode import Samples

WINDOW_SECONDS = 10.0
SIGMOS_QUALITIES = ("col", "disc", "loud", "noise", "reverb", "sig", "ovrl")
SQUIM_METRICS = ("stoi_squim", "pesq_squim", "sisdr_squim")


class _WindowedFilter(SpeechModelFilter):
    """Base: the mean of what an ONNX model says to windows of ten seconds."""

    shortest: ClassVar[float] = 1.0
    """A rest of a recording below this many seconds is not rated on its own."""

    def __init__(self, model_path: str) -> None:
        self.model_path = str(model_path)

    def heard_as(self) -> Hashable:
        return type(self).heard_as, self.model_path

    def check(self) -> None:
        require("onnxruntime", "onnx", "rating speech")
        if not Path(self.model_path).is_file():
            raise InputError(f"{self.name}: {self.model_path!r}: there is no such file: give the weights, as ONNX")

    def hear(self, samples: Samples) -> Any:
        return self.hear_blocks(iter([samples]))

    def hear_blocks(self, blocks: Iterator[Samples]) -> Any:
        size, found = round(WINDOW_SECONDS * self.rate), []
        rest = np.zeros(0, np.float32)
        for block in blocks:
            rest = np.concatenate([rest, block])
            while len(rest) >= size:
                found.append(self.rate_window(rest[:size]))
                rest = rest[size:]
        if not found or len(rest) >= self.shortest * self.rate:
            found.append(self.rate_window(rest))
        return np.mean(found, axis=0)

    def rate_window(self, window: Samples) -> Any:
        """What the model says to one window."""
        raise NotImplementedError


class UTMOSFilter(_WindowedFilter):
    """Keeps speech that people would rate at `min_mos` or more, of 5, as the UTMOS model predicts.

    `model_path` is the model as ONNX: from samples at 16 kHz, of shape (1, samples), to a rating.
    """

    def __init__(self, model_path: str, min_mos: float | None = 3.5) -> None:
        self.min_mos = min_mos
        self._check_bounds()
        super().__init__(model_path)

    def rate_window(self, window: Samples) -> Any:
        model = session(self.model_path)
        [answer, *_] = model({model.inputs[0].name: window[None]}).values()
        return float(np.mean(answer))

    def score_audio(self, audio: Any) -> float:
        return float(audio)

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_mos, None


class SIGMOSFilter(_WindowedFilter):
    """Keeps recordings that people would rate at `min_mos` or more, of 5, in one `quality`, as SIGMOS predicts.

    Qualities are "noise", "ovrl" (all), "sig" (the voice), "col" (coloration), "disc" (interruptions), "loud" and
    "reverb". `model_path` is the ONNX file that Microsoft has published. It hears 48 kHz.
    """

    rate = 48_000

    def __init__(self, model_path: str, quality: str = "ovrl", min_mos: float | None = 3.5) -> None:
        self.min_mos = min_mos
        self._check_bounds()
        super().__init__(model_path)
        if quality not in SIGMOS_QUALITIES:
            hint = did_you_mean(quality, SIGMOS_QUALITIES)
            raise ValueError(
                f"SIGMOSFilter: quality is {quality!r}, must be one of {', '.join(SIGMOS_QUALITIES)}.{hint}"
            )
        self.quality = quality

    def rate_window(self, window: Samples) -> Any:
        model = session(self.model_path)
        [answer, *_] = model({model.inputs[0].name: sigmos_features(window)}).values()
        return answer[0]

    def score_audio(self, audio: Any) -> float:
        return float(audio[SIGMOS_QUALITIES.index(self.quality)])

    def bounds(self) -> tuple[float | None, float | None]:
        return self.min_mos, None


def sigmos_features(samples: Samples) -> Any:
    """What SIGMOS sees: spectra of 20 ms each 10 ms, as compressed power, real and imaginary parts."""
    size, hop = 960, 480
    padded = np.pad(samples, (size - hop, size - (len(samples) % hop or hop)))
    window = np.sqrt(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)).astype(np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop]
    spectrum = np.fft.rfft(frames * window, axis=1).astype(np.complex64)
    power = np.maximum(spectrum.real**2 + spectrum.imag**2, np.float32(1e-12))
    shrunk = spectrum * power ** np.float32(-0.35)
    return np.stack([power ** np.float32(0.15), shrunk.real, shrunk.imag])[None].astype(np.float32)


class _RatingStage(CompositeStage[AudioBatch, AudioBatch]):
    """Base of stages that score recordings and drop some."""

    folds = True


class UTMOSFilterStage(_RatingStage):
    """Keeps speech whose UTMOS rating, in the column `utmos_mos`, is at least `mos_threshold`; None only adds it.

    `model_path` is the model as ONNX, and nothing is downloaded. It hears 16 kHz.
    """

    def __init__(
        self, mos_threshold: float | None = 3.5, sample_rate: int = RATE, model_path: str | None = None
    ) -> None:
        if sample_rate != RATE:
            raise ValueError(f"UTMOSFilterStage: sample_rate is {sample_rate}, and the model hears {RATE:,}")
        self.mos_threshold, self.sample_rate, self.model_path = mos_threshold, sample_rate, model_path

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        tool = UTMOSFilter(_given(self, self.model_path), self.mos_threshold)
        return [(AudioScore if self.mos_threshold is None else AudioScoreFilter)(tool, "utmos_mos")]


class SIGMOSFilterStage(_RatingStage):
    """Keeps recordings whose SIGMOS ratings are at least the thresholds, and adds them: `sigmos_noise` and so on.

    `model_path` is the ONNX file, and nothing is downloaded; `model_dir` is a directory that has it.
    """

    def __init__(
        self,
        model_dir: str | None = None,
        model_path: str | None = None,
        noise_threshold: float | None = 4.0,
        ovrl_threshold: float | None = 3.5,
        sig_threshold: float | None = None,
        col_threshold: float | None = None,
        disc_threshold: float | None = None,
        loud_threshold: float | None = None,
        reverb_threshold: float | None = None,
    ) -> None:
        self.model_dir, self.model_path = model_dir, model_path
        self.noise_threshold, self.ovrl_threshold, self.sig_threshold = noise_threshold, ovrl_threshold, sig_threshold
        self.col_threshold, self.disc_threshold = col_threshold, disc_threshold
        self.loud_threshold, self.reverb_threshold = loud_threshold, reverb_threshold

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        found = sorted(Path(self.model_dir).glob("*.onnx")) if self.model_dir else []
        path = _given(self, self.model_path or next(map(str, found), None))
        limits = {
            "noise": self.noise_threshold, "ovrl": self.ovrl_threshold, "sig": self.sig_threshold,
            "col": self.col_threshold, "disc": self.disc_threshold, "loud": self.loud_threshold,
            "reverb": self.reverb_threshold,
        }  # fmt: skip
        stages: list[ProcessingStage[Any, Any]] = []
        for kind, wanted in ((AudioScore, False), (AudioScoreFilter, True)):
            names = [name for name, limit in limits.items() if (limit is not None) is wanted]
            if names:
                tools = [SIGMOSFilter(path, name, limits[name]) for name in names]
                stages.append(kind(tools, [f"sigmos_{name}" for name in names]))
        return stages


class BandFilterStage(_RatingStage):
    """Keeps recordings of one band: "full_band" has sound above `full_band_hz`, "narrow_band" has none.

    The bandwidth is measured (`AudioBandwidthFilter`) and added as `bandwidth`. NeMo Curator asks a classifier, whose
    file would have to be unpickled: `model_path` and `cache_dir` change nothing.
    """

    def __init__(
        self,
        model_path: str | None = None,
        cache_dir: str | None = None,
        band_value: str = "full_band",
        full_band_hz: float = 8000.0,
    ) -> None:
        if band_value not in ("full_band", "narrow_band"):
            raise ValueError(f"BandFilterStage: band_value is {band_value!r}, must be 'full_band' or 'narrow_band'")
        self.model_path, self.cache_dir = model_path, cache_dir
        self.band_value, self.full_band_hz = band_value, full_band_hz

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        full = self.band_value == "full_band"
        return [AudioScoreFilter(AudioBandwidthFilter(self.full_band_hz), "bandwidth", invert=not full)]


def _given(stage: CompositeStage[Any, Any], path: str | None) -> str:
    if path is None:
        raise InputError(f"{type(stage).__name__}: model_path is missing: give the weights, as an ONNX file")
    return path


class _SquimModel(_WindowedFilter):
    """STOI, PESQ and SI-SDR of windows."""

    def rate_window(self, window: Samples) -> Any:
        model = session(self.model_path)
        answers = model({model.inputs[0].name: window[None]}).values()
        return np.array([float(np.mean(answer)) for answer in answers])

    def score_audio(self, audio: Any) -> float:
        return float(audio[0])

    def bounds(self) -> tuple[float | None, float | None]:
        return None, None


class TorchSquimQualityMetricsStage(ProcessingStage[AudioBatch, AudioBatch]):
    """Adds `stoi_squim`, `pesq_squim` and `sisdr_squim` to `metrics`: how clear speech is, without a reference.

    `model_path` is the SQUIM model of torchaudio, exported as ONNX: from samples at 16 kHz, of shape (1, samples), to
    three numbers in this order. Segments are rated where they are rows of their own.
    """

    max_retries = 0

    def __init__(self, model_path: str | None = None, target_sr: int = RATE, metrics_key: str = "metrics") -> None:
        super().__init__()
        if target_sr != RATE:
            raise ValueError(f"TorchSquimQualityMetricsStage: target_sr is {target_sr}, and the model hears {RATE:,}")
        self.model_path, self.target_sr, self.metrics_key = model_path, target_sr, metrics_key

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.metrics_key]

    def check(self) -> None:
        if self.model_path is None:
            raise InputError("TorchSquimQualityMetricsStage: model_path is missing: give the weights, as an ONNX file")
        _SquimModel(self.model_path).check()

    def process(self, task: AudioBatch) -> AudioBatch:
        assert self.model_path is not None
        heard = heard_rows(task, _SquimModel(self.model_path))
        good = []
        for row, answer in enumerate(heard):
            if isinstance(answer, np.ndarray):
                good.append(row)
            else:
                bad: BadAudio = answer
                set_aside_row(task, row, bad, self)
        kept = task if len(good) == len(heard) else task.take(good)
        metrics: list[Mapping[str, Any]] = []
        for row, old in zip(good, values_of(kept, self.metrics_key), strict=True):
            named = zip(SQUIM_METRICS, heard[row], strict=True)
            metrics.append({**(old or {}), **{name: round(float(value), 4) for name, value in named}})
        return kept.with_column(self.metrics_key, nested(metrics))
