"""Commands of `gristmill`, one module each. `run`, `plan`, `preview` and other short ones are in `cli/main.py`."""
