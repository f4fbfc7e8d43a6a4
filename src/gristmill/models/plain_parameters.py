"""PlainParameters: objects that recipes write as the parameters they are made of."""

from __future__ import annotations


class PlainParameters:
    """An object that is nothing but its parameters: each is an attribute of the same name. Where a stage takes one, it
    takes a mapping of the parameters too, and that is how a recipe has it."""
