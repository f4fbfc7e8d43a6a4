"""The nouns of Gristmill. This package imports none of the packages above it."""

VERSION = "0.1.0"
