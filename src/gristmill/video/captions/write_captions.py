"""Stages that have captions written by models behind OpenAI-compatible endpoints.

    CaptionGenerationStage    shows the frames of each window to a model that sees; with a second stage, asks it to
                              revise what it wrote
    CaptionEnhancementStage   has captions rewritten by a language model

Captions stand in the windows of a clip, as `VARIANT_caption` and `VARIANT_enhanced_caption`, and those of all windows
together in the columns `caption` and `enhanced_caption`. Answers are kept by what was asked (`models/llm`): a run that
was killed pays for nothing twice. A clip whose request fails goes to quarantine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import POSITION, table_to_rows
from gristmill.core.batch import SOURCE_FILE
from gristmill.core.errors import ContractError
from gristmill.models.llm.generation_config import GenerationConfig
from gristmill.models.llm.llm_request import FailedRequest, LLMRequest, image_part, text_part, user_message
from gristmill.models.llm.llm_stage import LLMStage
from gristmill.models.llm.spending import Budget
from gristmill.samples.argument_checks import check_choice
from gristmill.video.batch import VideoBatch
from gristmill.video.captions.caption_windows import CAPTION_PROMPT, END_FRAME, FRAMES, START_FRAME, WINDOWS
from gristmill.video.frame_stage import shown_name

if TYPE_CHECKING:
    from gristmill.core.stage import Columns

CAPTION, ENHANCED_CAPTION = "caption", "enhanced_caption"

SECOND_PROMPT = (
    "Here is a description of the video in these pictures. Correct what is wrong in it, add what it leaves out, and "
    "answer with the new description alone."
)
ENHANCING_PROMPTS = {
    "default": "Rewrite this description of a video as one fluent paragraph. Keep every fact and add none. Answer with "
    "the paragraph alone.",
    "short": "Say in one sentence what this description of a video says. Answer with the sentence alone.",
}
"""By `prompt_variant`."""

Row = dict[str, Any]


class _CaptionStage(LLMStage[VideoBatch, VideoBatch]):
    """What the two share: one or more requests for each window, and captions in windows and columns."""

    is_base: ClassVar[bool] = True
    takes_empty = True
    column: ClassVar[str]
    model_variant: str

    def _set_generation(
        self, max_output_tokens: int, given: GenerationConfig | Mapping[str, Any] | None
    ) -> GenerationConfig | Mapping[str, Any]:
        """For constructors: `generation_config`, or one of `max_output_tokens`."""
        return GenerationConfig(max_tokens=max_output_tokens) if given is None else given

    def _key(self) -> str:
        """The name of captions in windows."""
        return f"{self.model_variant}_{self.column}"

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [WINDOWS, self.column]

    def _answers(
        self, requests: Sequence[LLMRequest], rows: Sequence[int], failed: dict[int, FailedRequest]
    ) -> list[str]:
        """The text of each answer; empty where there is none, and the row is noted as failed."""
        texts = []
        for row, outcome in zip(rows, self.ask(requests) if requests else (), strict=True):
            if isinstance(outcome, FailedRequest):
                failed.setdefault(row, outcome)
            texts.append("" if isinstance(outcome, FailedRequest) else outcome.text.strip())
        return texts

    def _with_captions(
        self, task: VideoBatch, windows: list[list[Row]], failed: Mapping[int, FailedRequest]
    ) -> VideoBatch:
        kept = [row for row in range(task.num_items) if row not in failed]
        for row, outcome in failed.items():
            values = table_to_rows(task.data.slice(row, 1))[0]
            position = values.pop(POSITION, None)
            values = {name: value for name, value in values.items() if name not in (WINDOWS, "video")}
            raw = {"raw_answer": outcome.raw} if outcome.raw else {}
            reason = f"{shown_name(values)}: {outcome.reason}"
            self.set_aside(reason, row={**values, **raw}, file=task.metadata.get(SOURCE_FILE), position=position)
        rows = task if len(kept) == task.num_items else task.take(kept)
        texts = [" ".join(window[self._key()] for window in windows[row]) or None for row in kept]
        rows = rows.with_column(WINDOWS, _window_column([windows[row] for row in kept], self._key()))
        return rows.with_column(self.column, make_array(texts, pa.string()))


def _window_column(windows: Sequence[Sequence[Row]], key: str) -> pa.Array:
    names = dict.fromkeys([START_FRAME, END_FRAME, *(name for one in windows for row in one for name in row), key])
    types = {START_FRAME: pa.int64(), END_FRAME: pa.int64(), "webp_bytes": pa.binary()}
    struct = pa.struct([(name, types.get(name, pa.string())) for name in names])
    return make_array([list(one) for one in windows], pa.list_(struct))


class CaptionGenerationStage(_CaptionStage):
    """Has a caption written for each window of each clip, by a model that sees, behind an OpenAI-compatible endpoint.

    `client` is an `AsyncOpenAIClient`, or its parameters, and `model_name` what the endpoint calls the model.
    `model_variant` names the captions: `windows` get `VARIANT_caption`. With `generate_stage2_caption` the model is
    shown the frames again, with its first caption and `stage2_prompt_text`, and the second answer is the caption.
    The pictures leave the rows here. `caption_batch_size`, `fp8`, `disable_mmcache` and `vllm_kwargs` change nothing:
    they are settings of a server.
    """

    column = CAPTION
    not_identity: ClassVar[tuple[str, ...]] = (
        *LLMStage.not_identity, "caption_batch_size", "fp8", "disable_mmcache", "vllm_kwargs", "verbose",
    )  # fmt: skip

    def __init__(
        self,
        client: Any = None,
        model_name: str = "",
        model_variant: str = "qwen2.5",
        caption_batch_size: int = 16,
        fp8: bool = False,
        max_output_tokens: int = 512,
        disable_mmcache: bool = False,
        vllm_kwargs: Mapping[str, Any] | None = None,
        generate_stage2_caption: bool = False,
        stage2_prompt_text: str | None = None,
        verbose: bool = False,
        generation_config: GenerationConfig | Mapping[str, Any] | None = None,
        *,
        cache: str | None = None,
        cache_options: Mapping[str, Any] | None = None,
        cache_only: bool = False,
        budget: Budget | Mapping[str, Any] | None = None,
    ) -> None:
        config = self._set_generation(max_output_tokens, generation_config)
        super().__init__(
            client, model_name, config, cache=cache, cache_options=cache_options, cache_only=cache_only, budget=budget
        )
        self.generation_config = generation_config
        self.model_variant, self.caption_batch_size, self.fp8 = model_variant, caption_batch_size, fp8
        self.max_output_tokens, self.disable_mmcache, self.vllm_kwargs = max_output_tokens, disable_mmcache, vllm_kwargs
        self.generate_stage2_caption, self.stage2_prompt_text = generate_stage2_caption, stage2_prompt_text
        self.verbose = verbose

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [WINDOWS, CAPTION_PROMPT]

    def process(self, task: VideoBatch) -> VideoBatch:
        windows: list[list[Row]] = [list(one or ()) for one in task.data.column(WINDOWS).to_pylist()]
        prompts = task.data.column(CAPTION_PROMPT).to_pylist()
        places = [(row, window) for row, one in enumerate(windows) for window in one]
        rows = [row for row, _ in places]
        failed: dict[int, FailedRequest] = {}
        texts = self._answers([self._question(window, prompts[row]) for row, window in places], rows, failed)
        if self.generate_stage2_caption:
            texts = self._revised(places, texts, failed)
        for (_, window), text in zip(places, texts, strict=True):
            window.pop(FRAMES, None)
            window[self._key()] = text
        made = self._with_captions(task, windows, failed)
        return made.with_data(made.data.drop_columns([CAPTION_PROMPT]))

    def _question(self, window: Row, prompt: str) -> LLMRequest:
        pictures = window.get(FRAMES)
        if not pictures:
            raise ContractError(f"stage {self.name!r}: windows have no pictures: put CaptionPreparationStage before it")
        return self.request([user_message([*map(image_part, pictures), text_part(prompt)])])

    def _revised(
        self, places: Sequence[tuple[int, Row]], texts: Sequence[str], failed: dict[int, FailedRequest]
    ) -> list[str]:
        """The captions that the model gives when it sees its first ones. Rows that have failed are not asked again."""
        prompt = self.stage2_prompt_text or SECOND_PROMPT
        asked = [at for at, (row, _) in enumerate(places) if row not in failed]
        requests = [self._question(places[at][1], f"{prompt}\n\n{texts[at]}") for at in asked]
        answers = self._answers(requests, [places[at][0] for at in asked], failed)
        found = list(texts)
        for at, answer in zip(asked, answers, strict=True):
            found[at] = answer
        return found


class CaptionEnhancementStage(_CaptionStage):
    """Has the caption of each window rewritten by a language model behind an OpenAI-compatible endpoint.

    `windows` get `VARIANT_enhanced_caption`. The prompt is `prompt_text`, or the one called `prompt_variant`: "default"
    or "short"; the caption follows it. `caption_variant` names the captions that are rewritten. `model_batch_size`,
    `fp8` and `vllm_kwargs` change nothing: they are settings of a server.
    """

    column = ENHANCED_CAPTION
    not_identity: ClassVar[tuple[str, ...]] = (
        *LLMStage.not_identity, "model_batch_size", "fp8", "vllm_kwargs", "verbose",
    )  # fmt: skip

    def __init__(
        self,
        client: Any = None,
        model_name: str = "",
        model_variant: str = "qwen2.5",
        prompt_variant: str = "default",
        prompt_text: str | None = None,
        model_batch_size: int = 128,
        fp8: bool = False,
        vllm_kwargs: Mapping[str, Any] | None = None,
        max_output_tokens: int = 512,
        verbose: bool = False,
        caption_variant: str = "qwen2.5",
        generation_config: GenerationConfig | Mapping[str, Any] | None = None,
        *,
        cache: str | None = None,
        cache_options: Mapping[str, Any] | None = None,
        cache_only: bool = False,
        budget: Budget | Mapping[str, Any] | None = None,
    ) -> None:
        config = self._set_generation(max_output_tokens, generation_config)
        super().__init__(
            client, model_name, config, cache=cache, cache_options=cache_options, cache_only=cache_only, budget=budget
        )
        check_choice(type(self).__name__, "prompt_variant", prompt_variant, ENHANCING_PROMPTS)
        self.generation_config = generation_config
        self.model_variant, self.prompt_variant, self.prompt_text = model_variant, prompt_variant, prompt_text
        self.model_batch_size, self.fp8, self.vllm_kwargs = model_batch_size, fp8, vllm_kwargs
        self.max_output_tokens, self.verbose, self.caption_variant = max_output_tokens, verbose, caption_variant

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [WINDOWS]

    def process(self, task: VideoBatch) -> VideoBatch:
        windows: list[list[Row]] = [list(one or ()) for one in task.data.column(WINDOWS).to_pylist()]
        places = [(row, window) for row, one in enumerate(windows) for window in one]
        failed: dict[int, FailedRequest] = {}
        texts = self._answers([self._question(window) for _, window in places], [row for row, _ in places], failed)
        for (_, window), text in zip(places, texts, strict=True):
            window[self._key()] = text
        return self._with_captions(task, windows, failed)

    def _question(self, window: Row) -> LLMRequest:
        key = f"{self.caption_variant}_{CAPTION}"
        if key not in window:
            raise ContractError(f"stage {self.name!r}: windows have no {key!r}: put CaptionGenerationStage before it")
        prompt = self.prompt_text or ENHANCING_PROMPTS[self.prompt_variant]
        return self.request([user_message(f"{prompt}\n\n{window[key]}")])
