"""The text modifiers that come with Gristmill. Their contract is `text/document_modifier.py`."""
