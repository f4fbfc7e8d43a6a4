"""Other curation systems, each in a virtual environment of its own, and the programs that are measured there."""
