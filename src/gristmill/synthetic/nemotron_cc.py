"""The five steps that Nemotron-CC makes data with: paraphrases of poor documents, four kinds of text from good ones.

They have the names and columns of NeMo Curator; the prompts are our own, in `prompts/`. Around each step a pipeline
cuts documents to the length that the model reads well (`TokenCountFilter`, `DocumentSplitter`, `DocumentJoiner`), and
cleans the answers (`MarkdownRemover`, `SubstringFilter`, `Slicer`, `QuotationRemover`, and the stages in
`nemotron_cc_cleaning.py`); docs/llm.md shows one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gristmill.models.llm.generation_config import GenerationConfig
from gristmill.models.llm.spending import Budget
from gristmill.synthetic.prompt_stage import PromptStage


class NemotronStage(PromptStage):
    """Base of the five steps: the parameters of NeMo Curator, and a prompt and a column of its own."""

    is_base: ClassVar[bool] = True
    _output_field: ClassVar[str] = "generated"

    def __init__(
        self,
        system_prompt: str | None = None,
        prompt: str = "",
        input_field: str = "text",
        output_field: str = "",
        client: Any = None,
        model_name: str = "",
        generation_config: GenerationConfig | Mapping[str, Any] | None = None,
        *,
        select: Mapping[str, Sequence[Any]] | None = None,
        lineage: str | None = "synthetic",
        cache: str | None = None,
        cache_options: Mapping[str, Any] | None = None,
        cache_only: bool = False,
        budget: Budget | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            prompt,
            client,
            model_name,
            input_field,
            output_field or self._output_field,
            system_prompt=system_prompt,
            generation_config=generation_config,
            select=select,
            lineage=lineage,
            cache=cache,
            cache_options=cache_options,
            cache_only=cache_only,
            budget=budget,
        )


class WikipediaParaphrasingStage(NemotronStage):
    """Paraphrases documents in the style of an encyclopaedia, into the column `rephrased`."""

    _prompt_name: ClassVar[str] = "wikipedia_paraphrasing"
    _output_field: ClassVar[str] = "rephrased"


class DiverseQAStage(NemotronStage):
    """Asks and answers questions of several kinds about documents, into the column `diverse_qa`."""

    _prompt_name: ClassVar[str] = "diverse_qa"
    _output_field: ClassVar[str] = "diverse_qa"


class DistillStage(NemotronStage):
    """Shortens documents to what they say, into the column `distill`."""

    _prompt_name: ClassVar[str] = "distill"
    _output_field: ClassVar[str] = "distill"


class ExtractKnowledgeStage(NemotronStage):
    """Writes the knowledge in documents as a text of its own, into the column `extract_knowledge`."""

    _prompt_name: ClassVar[str] = "extract_knowledge"
    _output_field: ClassVar[str] = "extract_knowledge"


class KnowledgeListStage(NemotronStage):
    """Lists the facts in documents, into the column `knowledge_list`."""

    _prompt_name: ClassVar[str] = "knowledge_list"
    _output_field: ClassVar[str] = "knowledge_list"
