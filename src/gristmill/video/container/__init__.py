"""How films lie in files: formats by their first bytes, parts of files."""
