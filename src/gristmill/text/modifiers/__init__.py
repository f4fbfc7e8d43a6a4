"""The catalogue of text modifiers. Each returns a changed text; the contract is `DocumentModifier` in `document_modifier.py`."""
