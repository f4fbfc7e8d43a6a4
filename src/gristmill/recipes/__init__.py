"""Recipes: pipelines written in YAML and checked before anything runs, and pipelines written as recipes.

name: demo
vars: {input: data, output: out, min_words: 40}
stages:
  - JsonlReader: {file_paths: "${input}"}
  - ScoreFilter:
      filter_obj: {WordCountFilter: {min_words: "${min_words}"}}
    with: {batch_size: 4}
  - JsonlWriter: {path: "${output}"}
executor: {LocalExecutor: {num_workers: 2}}

Classes are found by their public names, so a new public stage or filter is available at once. Classes of the user are
written `package.module:ClassName`.
"""

from gristmill.recipes.pipeline_to_recipe import recipe_of
from gristmill.recipes.recipe import Recipe, bundled, load_recipe
from gristmill.recipes.stage_catalogue import Entry, Parameter, catalogue, schema
from gristmill.recipes.variables import parse_settings

__all__ = [
    "Entry",
    "Parameter",
    "Recipe",
    "bundled",
    "catalogue",
    "load_recipe",
    "parse_settings",
    "recipe_of",
    "schema",
]
