"""Scripts, notebooks and configurations of NeMo Curator, rewritten for Gristmill.

`gristmill migrate` is the command; `create_pipeline_from_yaml` runs a configuration as it is.
"""

from gristmill.migrate.curator_config import create_pipeline_from_yaml
from gristmill.migrate.file_rewrite import rewrite_file, source_files
from gristmill.migrate.name_map import find_name
from gristmill.migrate.script_rewrite import Finding, Rewrite, rewrite_script

__all__ = [
    "Finding",
    "Rewrite",
    "create_pipeline_from_yaml",
    "find_name",
    "rewrite_file",
    "rewrite_script",
    "source_files",
]
