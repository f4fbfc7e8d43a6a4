"""Boilerplate: paragraphs of policies and cookie notices that stand above and below what people wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.text.modifiers.document_modifier import DocumentModifier
from gristmill.text.modifiers.removers import modify_matching_rows
from gristmill.text.statistics.reference import LOREM_IPSUM, POLICY_PHRASES

if TYPE_CHECKING:
    import pyarrow as pa

    from gristmill.text.document_filter import Texts


class BoilerPlateStringModifier(DocumentModifier):
    """Removes paragraphs that hold a policy phrase, such as "privacy policy", from the top and bottom of a document.

    Paragraphs are separated by blank lines (\\n\\n). Those at the top, down to the first without such a phrase, and
    those at the bottom are removed; with `remove_if_at_top_or_bottom=False` all are, wherever they stand. A document
    with "lorem ipsum" in it becomes empty. Case does not matter.
    """

    _SUSPECT = "(?i)" + "|".join([LOREM_IPSUM, *POLICY_PHRASES])

    def __init__(self, remove_if_at_top_or_bottom: bool = True) -> None:
        self.remove_if_at_top_or_bottom = remove_if_at_top_or_bottom

    def modify_document(self, text: str) -> str:
        if LOREM_IPSUM in text.lower():
            return ""
        paragraphs = text.split("\n\n")
        notices = [any(phrase in paragraph.lower() for phrase in POLICY_PHRASES) for paragraph in paragraphs]
        if not any(notices):
            return text
        first, last = 0, len(paragraphs)
        if self.remove_if_at_top_or_bottom:
            while first < last and notices[first]:
                first += 1
            while first < last and notices[last - 1]:
                last -= 1
            return "\n\n".join(paragraphs[first:last])
        return "\n\n".join([part for part, notice in zip(paragraphs, notices, strict=True) if not notice])

    def modify_batch(self, texts: Texts) -> pa.Array:
        return modify_matching_rows(texts, self._SUSPECT, self.modify_document)
