"""The catalogue of text filters. Each scores a document and decides by the score whether it is kept; the contract is `text/document_filter.py`."""
