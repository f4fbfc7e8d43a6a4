"""Parts of documents that occur elsewhere: lines, paragraphs, sentences and byte spans, found across the corpus and cut out."""
