"""Tokenizers of three libraries behind one interface, and writers of token files (Megatron, packed sequences)."""
