"""Data made by language models: rewriting, questions and answers, translation, judging, labels.

Any endpoint with the protocol of OpenAI will do. Answers are kept, so that none is paid for twice. The names below are
imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy_imports import lazy

if TYPE_CHECKING:
    from gristmill.models.llm.generation_config import GenerationConfig as GenerationConfig
    from gristmill.models.llm.llm_client import AsyncLLMClient as AsyncLLMClient
    from gristmill.models.llm.llm_client import LLMClient as LLMClient
    from gristmill.models.llm.openai_client import AsyncOpenAIClient as AsyncOpenAIClient
    from gristmill.models.llm.openai_client import OpenAIClient as OpenAIClient
    from gristmill.models.llm.prompt import Prompt as Prompt
    from gristmill.models.llm.spending import Budget as Budget
    from gristmill.synthetic.annotate import AnnotateStage as AnnotateStage
    from gristmill.synthetic.conversation import ConversationStage as ConversationStage
    from gristmill.synthetic.judge import LLMFilter as LLMFilter
    from gristmill.synthetic.judge import LLMJudgeStage as LLMJudgeStage
    from gristmill.synthetic.multilingual_texts import QAMultilingualSyntheticStage as QAMultilingualSyntheticStage
    from gristmill.synthetic.nemotron_cc import DistillStage as DistillStage
    from gristmill.synthetic.nemotron_cc import DiverseQAStage as DiverseQAStage
    from gristmill.synthetic.nemotron_cc import ExtractKnowledgeStage as ExtractKnowledgeStage
    from gristmill.synthetic.nemotron_cc import KnowledgeListStage as KnowledgeListStage
    from gristmill.synthetic.nemotron_cc import WikipediaParaphrasingStage as WikipediaParaphrasingStage
    from gristmill.synthetic.nemotron_cc_cleaning import DiverseQAPostProcessingStage as DiverseQAPostProcessingStage
    from gristmill.synthetic.nemotron_cc_cleaning import (
        KnowledgeListPostProcessingStage as KnowledgeListPostProcessingStage,
    )
    from gristmill.synthetic.prompt_stage import PromptStage as PromptStage
    from gristmill.synthetic.rejection_sampling import RejectionSamplingStage as RejectionSamplingStage
    from gristmill.synthetic.rewrite import RewriteStage as RewriteStage
    from gristmill.synthetic.rubric import Rubric as Rubric
    from gristmill.synthetic.translation import TranslationStage as TranslationStage
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
