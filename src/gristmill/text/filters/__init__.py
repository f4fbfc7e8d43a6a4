"""The text filters that come with Gristmill. Their contract is `text/document_filter.py`."""
