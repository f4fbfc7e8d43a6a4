"""Language models behind OpenAI-compatible endpoints: clients, answers that are kept, budgets, prompts.

`LLMStage` is the base of every stage that asks one, in any modality. The names below are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy_imports import lazy

if TYPE_CHECKING:
    from gristmill.models.llm.answer_store import AnswerStore as AnswerStore
    from gristmill.models.llm.generation_config import GenerationConfig as GenerationConfig
    from gristmill.models.llm.llm_client import AsyncLLMClient as AsyncLLMClient
    from gristmill.models.llm.llm_client import LLMClient as LLMClient
    from gristmill.models.llm.llm_request import Answer as Answer
    from gristmill.models.llm.llm_request import FailedRequest as FailedRequest
    from gristmill.models.llm.llm_request import LLMRequest as LLMRequest
    from gristmill.models.llm.llm_request import audio_part as audio_part
    from gristmill.models.llm.llm_request import image_part as image_part
    from gristmill.models.llm.llm_request import text_part as text_part
    from gristmill.models.llm.llm_stage import LLMStage as LLMStage
    from gristmill.models.llm.openai_client import AsyncOpenAIClient as AsyncOpenAIClient
    from gristmill.models.llm.openai_client import OpenAIClient as OpenAIClient
    from gristmill.models.llm.prompt import Prompt as Prompt
    from gristmill.models.llm.spending import Budget as Budget
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
