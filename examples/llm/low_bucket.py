"""A stage for the demo: which documents are worth rewriting."""

from __future__ import annotations

import pyarrow as pa

from gristmill import DocumentBatch, ProcessingStage


class LowBucket(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Puts English documents of a few hasty sentences into the bucket `low`, and others into `high`."""

    def inputs(self):
        return ["data"], ["text", "lang"]

    def outputs(self):
        return ["data"], ["bucket"]

    def process(self, task):
        rows = zip(task.data["text"].to_pylist(), task.data["lang"].to_pylist(), strict=True)
        buckets = ["low" if lang == "en" and needs_work(text or "") else "high" for text, lang in rows]
        return task.with_column("bucket", pa.array(buckets, pa.string()))


def needs_work(text):
    """Whether a text is a paragraph or two of long-winded sentences."""
    words, ends = text.split(), sum(text.count(mark) for mark in ".!?")
    return 25 <= len(words) <= 75 and ends > 1 and len(words) > 16 * ends and text.isascii()
