"""Recipes: what is built, and what is refused and how."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline, ProcessingStage, Resources
from gristmill.core.errors import RecipeError
from gristmill.recipes import bundled, catalogue, load_recipe, parse_settings, schema
from gristmill.recipes.stage_catalogue import PACKAGES, known
from gristmill.samples.filters import SampleFilter
from gristmill.text import DocumentFilter, DocumentModifier, UnicodeReformatter, WordCountFilter, train_classifier
from tests.download.warc_fixtures import english, write_warc
from tests.interleaved.interleaved_fixtures import write_mint
from tests.recipes.test_pipeline_to_recipe import again
from tests.recipes.user_stages import MakeDocuments, TwoTags
from tests.text.test_trained_classifiers import write_labelled

MODIFY = "  - Modify: {modifier_fn: UrlRemover}"
OWN = "tests.recipes.user_stages"


def build(path: str, **overrides: Any) -> Pipeline:
    return load_recipe(path, overrides).build()


# -- building ------------------------------------------------------------------------------------------


def test_a_recipe_builds_its_pipeline(recipe: Any) -> None:
    path = recipe(
        f"""
  - {OWN}:MakeDocuments: {{count: "${{rows}}"}}
  - Modify: {{modifier_fn: UnicodeReformatter}}
  - ScoreFilter:
      filter_obj: {{WordCountFilter: {{min_words: 3}}}}
      score_field: word_count
    with: {{batch_size: 4, resources: {{cpus: 0.5}}, name: words}}
""",
        "name: mine\ndescription: a test\nvars: {rows: 6}",
    )
    pipeline = build(path)
    assert (pipeline.name, pipeline.description) == ("mine", "a test")
    source, modify, words = pipeline.stages
    assert isinstance(source, MakeDocuments)
    assert source.count == 6
    assert isinstance(modify.modifier_fn, UnicodeReformatter)
    assert isinstance(words.filter_obj, WordCountFilter)
    assert (words.filter_obj.min_words, words.score_field) == (3, "word_count")
    assert (words.name, words.batch_size, words.resources) == ("words", 4, Resources(cpus=0.5))
    result = pipeline.run(LocalExecutor(num_workers=0))
    assert result[0].num_items == 4


def test_a_stage_may_be_written_bare(recipe: Any) -> None:
    stages = build(recipe(f"  - {OWN}:MakeDocuments\n  - {OWN}:TwoTags:\n")).stages
    assert [type(stage) for stage in stages] == [MakeDocuments, TwoTags]


def test_the_name_is_the_files_when_none_is_given(recipe: Any) -> None:
    assert build(recipe(f"  - {OWN}:MakeDocuments")).name == "mine"


def test_lists_of_filters_are_built(recipe: Any) -> None:
    path = recipe(
        f"""  - {OWN}:MakeDocuments
  - ScoreFilter: {{filter_obj: [{{WordCountFilter: {{min_words: 1}}}}, UrlsFilter, {{"{OWN}:StartsWith": }}]}}"""
    )
    filters = build(path).stages[1].filter_obj
    assert [one.name for one in filters] == ["WordCountFilter", "UrlsFilter", "StartsWith"]


def test_a_column_may_be_named_like_a_filter(recipe: Any) -> None:
    path = recipe(
        f"""  - {OWN}:MakeDocuments
  - Score: {{score_fn: WordCountFilter, score_field: WordCountFilter}}"""
    )
    stage = build(path).stages[1]
    assert isinstance(stage.score_fn, WordCountFilter)
    assert stage.score_field == "WordCountFilter"


def test_a_parameter_without_a_type_takes_objects_too(recipe: Any) -> None:
    path = recipe(f"  - {OWN}:Untyped: {{tool: {{WordCountFilter: {{min_words: 7}}}}}}\n  - {OWN}:Untyped: {{tool: 3}}")
    first, second = build(path).stages
    assert first.tool.min_words == 7
    assert second.tool == 3


def test_settings_of_a_composites_parts(recipe: Any) -> None:
    stage = build(recipe(f"  - {OWN}:TwoTags:\n    with: {{two: {{batch_size: 8, resources: {{cpus: 2}}}}}}")).stages[0]
    one, two = stage.stages()
    assert (one.batch_size, two.batch_size, two.resources) == (1, 8, Resources(cpus=2))


def test_values_take_the_type_of_the_parameter(recipe: Any) -> None:
    path = recipe(
        f"""  - {OWN}:Tag: {{label: 2024}}
  - ScoreFilter: {{filter_obj: {{UrlsFilter: {{max_url_to_text_ratio: 1e-3}}}}}}"""
    )
    tag, urls = build(path).stages
    assert tag.label == "2024"
    assert urls.filter_obj.max_url_to_text_ratio == 0.001  # YAML reads 1e-3 as text


def test_executor(recipe: Any) -> None:
    path = recipe(f"  - {OWN}:MakeDocuments", "executor: {LocalExecutor: {num_workers: 3}}")
    executor = load_recipe(path).executor()
    assert isinstance(executor, LocalExecutor)
    assert executor.num_workers == 3
    assert load_recipe(path).executor("local", num_workers=1).num_workers == 1
    assert load_recipe(path, {"LocalExecutor.num_workers": 2}).executor().num_workers == 2
    assert load_recipe(recipe(f"  - {OWN}:MakeDocuments")).executor() is None
    with pytest.raises(RecipeError, match=r"no executor 'locl'. Did you mean 'local'"):
        load_recipe(path).executor("locl")


# -- variables and --set ---------------------------------------------------------------------------------


def test_variables_keep_their_type_and_join_text(recipe: Any) -> None:
    path = recipe(
        f"""  - {OWN}:Tag: {{label: "${{base}}/${{n}}", extra: {{n: "${{n}}", all: "${{many}}", raw: "$${{n}}"}}}}""",
        'vars: {root: out, base: "${root}/x", n: 5, many: [1, 2]}',
    )
    stage = build(path).stages[0]
    assert stage.label == "out/x/5"
    assert stage.extra == {"n": 5, "all": [1, 2], "raw": "${n}"}
    assert build(path, root="s3://b", n=6).stages[0].label == "s3://b/x/6"


@pytest.mark.parametrize(
    ("head", "value", "message"),
    [
        ("", "${input}", r"stage 1 .*Tag\): variable 'input' is not defined. Give it with --set input=..."),
        ("vars: {input: }", "${input}", "variable 'input' has no value. Give it with --set input=..."),
        ("vars: {input: x}", "${inptu}", "variable 'inptu' is not defined. Did you mean 'input'"),
        ('vars: {a: "${b}", b: "${a}"}', "${a}", "variable 'a' refers to itself: a -> b -> a"),
        ("vars: {a: [1]}", "x${a}", "cannot be inserted into text"),
    ],
)
def test_variables_that_cannot_be_filled_in(recipe: Any, head: str, value: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe(recipe(f'  - {OWN}:Tag: {{label: "{value}"}}', head))


def test_set_gives_a_variable_that_is_used_but_not_declared(recipe: Any) -> None:
    assert build(recipe(f'  - {OWN}:Tag: {{label: "${{who}}"}}'), who="me").stages[0].label == "me"


def test_set_parses_yaml_values() -> None:
    given = ["a=1", "b=x=y", "c=", "d=[1, 2]", "e=true", "f=: bad", "WordCountFilter.min_words=30", "g=0.5"]
    assert parse_settings(given) == {
        "a": 1, "b": "x=y", "c": "", "d": [1, 2], "e": True, "f": ": bad", "WordCountFilter.min_words": 30, "g": 0.5,
    }  # fmt: skip
    for wrong in ("nothing", "=1"):
        with pytest.raises(RecipeError, match="write --set name=value"):
            parse_settings([wrong])


def test_set_changes_parameters_wherever_the_class_appears(recipe: Any) -> None:
    path = recipe(
        f"""  - {OWN}:MakeDocuments
  - ScoreFilter: {{filter_obj: {{WordCountFilter: {{min_words: 1}}}}}}
  - ScoreFilter: {{filter_obj: WordCountFilter}}
    with: {{name: second}}
  - ScoreFilter: {{filter_obj: "{OWN}:StartsWith"}}"""
    )
    changes = {
        "WordCountFilter.min_words": 30,
        "MakeDocuments.count": 9,
        "second.score_field": "n",
        "ScoreFilter.batch_size": 2,
        "StartsWith.letter": "x",
    }
    source, first, second, third = build(path, **changes).stages
    assert (source.count, first.filter_obj.min_words, second.filter_obj.min_words) == (9, 30, 30)
    assert (first.score_field, second.score_field) == (None, "n")
    assert (first.batch_size, second.batch_size) == (2, 2)
    assert third.filter_obj.letter == "x"


def test_set_makes_an_empty_variable_needless(recipe: Any) -> None:
    path = recipe(f'  - {OWN}:Tag: {{label: "${{input}}"}}', "vars: {input: }")
    assert build(path, **{"Tag.label": "x"}).stages[0].label == "x"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("mn_words", "no variable 'mn_words'. Did you mean 'min_words'"),
        ("WordCountFiltr.min_words", "has no 'WordCountFiltr'. Did you mean 'WordCountFilter'"),
        ("WordCountFilter.min_word", "no parameter 'min_word'. Did you mean 'min_words'"),
        ("UrlsFilter.x", "has no 'UrlsFilter'"),
    ],
)
def test_set_of_what_is_not_there(recipe: Any, key: str, message: str) -> None:
    path = recipe(
        '  - ScoreFilter: {filter_obj: {WordCountFilter: {min_words: "${min_words}"}}}', "vars: {min_words: 3}"
    )
    with pytest.raises(RecipeError, match=message):
        load_recipe(path, {key: 1})


# -- typos -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("  - ScoreFiltr: {}", r"mine.yaml, stage 1: there is no stage 'ScoreFiltr'. Did you mean 'ScoreFilter'"),
        (
            "  - Modify: {modifier_fn: UrlRemover}\n  - ScoreFilter: {filter_ob: UrlsFilter}",
            r"stage 2 \(ScoreFilter\): there is no parameter 'filter_ob'. Did you.*Parameters: filter_obj \(required\)",
        ),
        ("  - ScoreFilter: {}", r"stage 1 \(ScoreFilter\): 'filter_obj' must be given. Parameters: filter_obj"),
        (
            "  - ScoreFilter: {filter_obj: {WordCountFilter: {min_word: 3}}}",
            r"filter_obj \(WordCountFilter\): there is no parameter 'min_word'. Did you mean 'min_words'",
        ),
        ("  - ScoreFilter: {filter_obj: {WordCuontFilter: {min_words: 3}}}", "Did you mean 'WordCountFilter'"),
        ("  - ScoreFilter: {filter_obj: WordCuontFilter}", "Did you mean 'WordCountFilter'"),
        ("  - ScoreFilter: {filter_obj: [WordCuontFilter]}", "Did you mean 'WordCountFilter'"),
        (f"  - {OWN}:Untyped: {{tool: {{WordCuontFilter: {{}}}}}}", "Did you mean 'WordCountFilter'"),
        ("  - WordCountFilter: {}", r"a filter is not a stage: write ScoreFilter: {filter_obj: WordCount"),
        ("  - UrlRemover: {}", r"a modifier is not a stage: write Modify: {modifier_fn: UrlRemover"),
        (
            "  - ScoreFilter: {filter_obj: {WordCountFilter: {min_words: many}}}",
            r"filter_obj \(WordCountFilter\): min_words is 'many': must be a whole number",
        ),
        ("  - Modify: UrlRemover", "stage 1: the parameters of Modify must be written name: value, not 'UrlRemover'"),
        ("  - Modify: {modifier_fn: UrlRemover}\n    wiht: {}", "found the keys Modify, wiht"),
        ("  - 3", "stage 1: a stage must be one class name"),
        (f"{MODIFY}\n    with: {{batchsize: 3}}", "no such setting. Did you mean 'batch_size'"),
        (f"{MODIFY}\n    with: {{batch_size: 0}}", r"stage 1 \(Modify\), with: .*batch_size is 0"),
        (f"{MODIFY}\n    with: {{resources: {{cpu: 1}}}}", "resources has no field 'cpu'. Did you mean 'cpus'"),
        (f"{MODIFY}\n    with: {{resources: {{cpus: -1}}}}", "must be a number, 0 or more"),
        (f"  - {OWN}:TwoTags:\n    with: {{batch_size: 3}}", "TwoTags is made of one, two: say which one is meant"),
        (f"  - {OWN}:TwoTags:\n    with: {{on: {{batch_size: 3}}}}", "TwoTags"),
        (f"  - {OWN}:Fussy: {{size: 11}}", r"stage 1 \(.*:Fussy\): size is 11, at most 10 are allowed"),
        (f"  - {OWN}:Tga: {{}}", f"module '{OWN}' has no class 'Tga'. Did you mean 'Tag'"),
        (f"  - {OWN}:NotAStage: {{}}", "must be a subclass of ProcessingStage, DocumentFilter or DocumentModifier"),
        ("  - os:system: {}", "must be a subclass of ProcessingStage"),
        ("  - no.such.module:Stage: {}", "No module named 'no'"),
    ],
)  # fmt: skip
def test_typos_are_answered(recipe: Any, stages: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        build(recipe(stages))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stags: []", "there is no 'stags' in a recipe. Did you mean 'stages'?"),
        ("stages: []", "`stages` is empty, and must be a list"),
        ("name: x", "'stages' is missing"),
        ("- a", "is not a recipe"),
        ("", "is empty, and not a recipe"),
        ("stages: [", "line 1: not valid YAML"),
        ("stages: [a]\nstages: [b]", "duplicate key 'stages'"),
        ("stages: !!python/object/apply:os.system [ls]", "line 1: not valid YAML"),
        ("name: [1]\nstages: [a]", "name must be text"),
        ("vars: 3\nstages: [a]", "vars must be names with values"),
    ],
)
def test_files_that_are_no_recipes(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=message) as caught:
        load_recipe(path)
    assert "bad.yaml" in str(caught.value)


def test_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"quickstrt is not a file.* Did you mean 'quickstart'"):
        load_recipe("quickstrt")
    with pytest.raises(RecipeError, match="is a directory"):
        load_recipe(tmp_path)


# -- catalogue and library -----------------------------------------------------------------------------------


def test_a_name_is_found_as_in_the_catalogue_without_loading_the_others() -> None:
    assert {name: known(name) for name in catalogue()} == dict(catalogue())
    assert known("DocumentFilter") is known("Pipeline") is known("no such thing") is None
    found = "import sys; from gristmill.recipes import load_recipe; "
    found += "load_recipe('heuristic-english', {'input': 'in', 'output': 'out'}).build(); "
    found += "unused = ('dedup.fuzzy', 'image.read', 'download.arxiv.latex'); "
    found += "sys.exit(any(f'gristmill.{one}' in sys.modules for one in unused))"
    subprocess.run([sys.executable, "-W", "ignore", "-c", found], check=True)


def test_the_catalogue_is_what_the_packages_list() -> None:
    names = set(catalogue())
    packages = [import_module(f"gristmill.{package}") for package in PACKAGES]
    listed = [(package, name) for package in packages for name in package.__all__]
    classes = {name for package, name in listed if isinstance(getattr(package, name), type)}
    usable = (ProcessingStage, DocumentFilter, DocumentModifier, SampleFilter)
    parts = {name for package, name in listed if name in classes and not issubclass(getattr(package, name), usable)}
    bases = {"AudioFilter", "AudioRangeFilter", "DocumentFilter", "DocumentModifier", "ImageFilter", "RuleFilter"}
    bases |= {"SpeechModelFilter", "TranscriptFilter", "VideoFilter", "VideoRangeFilter"}
    parts |= bases
    core = {"CountRows", "FilePartitioningStage", "Join", "Repartition", "Route", "Sample", "Shuffle", "Sort", "Tee"}
    assert names == core | classes - parts
    kinds = {name: entry.kind for name, entry in catalogue().items()}
    assert kinds["JsonlReader"] == "reader"
    assert kinds["ParquetWriter"] == "writer"
    assert kinds["Sample"] == "stage"
    assert (kinds["ScoreFilter"], kinds["WordCountFilter"], kinds["UrlRemover"]) == ("stage", "filter", "modifier")


def test_every_entry_says_what_it_does_and_knows_its_types() -> None:
    for entry in catalogue().values():
        assert entry.help, f"{entry.name} has no docstring"
        for parameter in entry.parameters.values():
            assert parameter.annotation, f"{entry.name}.{parameter.name} has no type"
            assert parameter.hint is not None, f"the type of {entry.name}.{parameter.name} cannot be resolved"


def test_the_schema_is_plain_data() -> None:
    words = next(entry for entry in schema() if entry["name"] == "WordCountFilter")
    assert words["kind"] == "filter"
    assert {"name": "min_words", "type": "int", "required": False, "default": 50} in words["parameters"]
    json.dumps(schema(), default=repr)


ELSEWHERE = {"fleurs", "speech", "speech-segments", "rewrite"}
"""The recipes that other tests run."""


@pytest.mark.filterwarnings("ignore:stage '.*' is made for English")  # and the demo corpus is not all English
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # warcio leaves files open
@pytest.mark.parametrize("name", sorted(set(bundled()) - ELSEWHERE))
def test_bundled_recipes_run(name: str, tmp_path: Path) -> None:
    examples = Path(__file__).parents[2] / "examples"
    demo = examples / "demo" / "data" / "web-00.jsonl"
    if name == "images":
        demo = tmp_path / "photographs.tar"
        with tarfile.open(demo, "w") as tar:
            for photo in ("chelsea.jpg", "coffee.jpg"):
                tar.add(examples / "images" / "photos" / photo, photo)
    if name.startswith("video"):
        demo = examples / "video" / "film" / "big_buck_bunny.mp4"
    if name == "interleaved":
        demo = write_mint(tmp_path / "shards")
    if name == "common-crawl":
        demo = write_warc(
            tmp_path / "pages.warc.gz", [(f"https://mill.example/{n}", english(n, 9), "text/html") for n in range(3)]
        )
    settings = {"input": str(demo), "output": str(tmp_path / "out")}
    if name == "quality-buckets":
        settings["model"] = str(tmp_path / "model")
        train_classifier(str(write_labelled(tmp_path / "labelled.jsonl")), settings["model"])
    recipe = load_recipe(name, settings)
    result = recipe.build().run(LocalExecutor(num_workers=0))
    assert recipe.description
    assert result.files() or name == "code"  # web pages are no source files
    first = recipe.build()
    assert first.describe(verbose=True) == again(first, tmp_path).describe(verbose=True)


def test_a_bundled_recipe_asks_for_its_input() -> None:
    with pytest.raises(RecipeError, match=r"quickstart, stage 1 .*--set input="):
        load_recipe("quickstart")


# -- what is refused without a traceback ---------------------------------------------------------------


@pytest.mark.parametrize("name", [".foo:Bar", ":Bar", "foo:", "..:Bar", "a..b:Bar"])
def test_a_name_that_names_no_class(recipe: Any, name: str) -> None:
    with pytest.raises(RecipeError, match="stage 1: .*package.module:ClassName"):
        build(recipe(f'  - "{name}"'))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def (", "SyntaxError: "),
        ("len.x", "AttributeError: "),
        ("from os import nothing_such", "ImportError: "),
    ],
)
def test_a_module_that_cannot_be_imported(
    recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    (tmp_path / "broken_stages.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RecipeError, match=f"stage 1: .*'broken_stages' cannot be imported: {reason}"):
        build(recipe("  - broken_stages:Stage"))


@pytest.mark.parametrize(
    "line", ["  - Modify: {? [a, b] : 1}", "  - Modify: {? {a: b} : 1}", "  - Modify: {a: 2024-13-45}"]
)
def test_yaml_that_python_cannot_hold(recipe: Any, line: str) -> None:
    with pytest.raises(RecipeError, match=r"mine\.yaml(, line 3: | is )not valid YAML"):
        build(recipe(line))
