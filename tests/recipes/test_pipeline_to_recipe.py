"""From a recipe to a pipeline, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline, processing_stage
from gristmill.core.errors import RecipeError
from gristmill.recipes import load_recipe, recipe_of
from gristmill.text import Filter, Modify, Score, ScoreFilter, UnicodeReformatter, WordCountFilter
from tests.recipes.user_stages import Forgetful, MakeDocuments, Shout, StartsWith, Tag, TwoTags, Untyped


def again(pipeline: Pipeline, tmp_path: Path) -> Pipeline:
    path = tmp_path / "again.yaml"
    path.write_text(recipe_of(pipeline).to_yaml(), encoding="utf-8")
    return load_recipe(path).build()


def test_yaml_to_pipeline_to_yaml(recipe: Any, tmp_path: Path, corpus: str) -> None:
    path = recipe(
        """
  - JsonlReader: {file_paths: "${input}", files_per_partition: 2}
  - Modify: {modifier_fn: UnicodeReformatter}
  - ScoreFilter:
      filter_obj: [{WordCountFilter: {min_words: "${min_words}"}}, UrlsFilter]
      score_field: [word_count, urls]
    with: {batch_size: 4, resources: {cpus: 0.5}}
  - JsonlWriter: {path: "${output}"}
""",
        f"name: round\ndescription: trip\nvars: {{input: {corpus}, output: {tmp_path}/out, min_words: 9}}",
    )
    first = load_recipe(path).build()
    second = again(first, tmp_path)
    assert first.describe(verbose=True) == second.describe(verbose=True)
    assert recipe_of(first).to_yaml() == recipe_of(second).to_yaml()
    assert (second.name, second.description) == ("round", "trip")
    assert second.stages[2].filter_obj[0].min_words == 9
    assert "max_words" not in recipe_of(first).to_yaml()  # defaults are left out


def test_pipeline_to_yaml(tmp_path: Path) -> None:
    first = Pipeline(
        "made",
        stages=[
            MakeDocuments(count=3).with_(max_retries=5),
            Tag("$" + "{literal} ü", extra={"a": [1, 2.5, None, True]}).with_(runtime_env={"env_vars": {"A": "1"}}),
            TwoTags(second="z").with_(one={"batch_size": 3}).with_({"one": {"timeout_s": 9.0, "name": "uno"}}),
            ScoreFilter(StartsWith("q"), invert=True).with_(name="mine"),
            Modify([Shout(), UnicodeReformatter()]),
            Score(WordCountFilter(min_words=2), "WordCountFilter"),
            Filter(WordCountFilter(), "WordCountFilter"),
            Untyped(Shout()),
        ],
    )  # fmt: skip
    second = again(first, tmp_path)
    assert first.describe(verbose=True) == second.describe(verbose=True)
    assert recipe_of(first).stages == recipe_of(second).stages
    made, tag, tags, starts, modify, score, _, untyped = second.stages
    assert (made.count, made.max_retries) == (3, 5)
    assert (tag.label, tag.extra["a"], tag.runtime_env["env_vars"]) == (
        "${literal} ü",
        [1, 2.5, None, True],
        {"A": "1"},
    )
    uno = tags.stages()[0]
    assert (uno.name, uno.batch_size, uno.timeout_s) == ("uno", 3, 9.0)
    assert (starts.name, starts.invert, starts.filter_obj.letter) == ("mine", True, "q")
    assert [type(one) for one in modify.modifier_fn] == [Shout, UnicodeReformatter]
    assert (score.score_field, type(score.score_fn)) == ("WordCountFilter", WordCountFilter)
    assert isinstance(untyped.tool, Shout)


def test_executors_are_kept(tmp_path: Path) -> None:
    kept = recipe_of(Pipeline("x", stages=[MakeDocuments()]), LocalExecutor(num_workers=2)).to_yaml()
    (tmp_path / "x.yaml").write_text(kept)
    assert load_recipe(tmp_path / "x.yaml").executor().num_workers == 2


@processing_stage(name="made_from_function")
def function_stage(task: Any) -> Any:
    return task


def local_stage() -> Any:
    class Local(Tag):
        pass

    return Local("x")


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (function_stage, r"stage 2 \(made_from_function\) is a function"),
        (Modify(lambda text: text), r"stage 2 \(Modify\), modifier_fn is the function '<lambda>'"),
        (Untyped(object()), r"stage 2 \(Untyped\), tool is a object"),
        (local_stage(), r"cannot be imported from tests.recipes.test_pipeline_to_recipe: move it"),
        (Forgetful(3), r"stage 2 \(Forgetful\) does not keep its parameter 'secret' as an attribute"),
    ],
)
def test_what_a_recipe_cannot_hold(stage: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe_of(Pipeline("x", stages=[MakeDocuments(), stage]))
