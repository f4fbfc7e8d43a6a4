"""Recipes that cannot work: each gives one short message with the way out, exit code 2, and no traceback."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gristmill.cli.main import app
from gristmill.cli.recipe_runner import exit_on_error

READ = "  - JsonlReader: {file_paths: data}\n"
WRITE = "  - JsonlWriter: {path: out}\n"
UNREACHABLE = (
    "storage_options: {endpoint_url: 'http://127.0.0.1:9', key: a, secret: b, "
    "config_kwargs: {retries: {max_attempts: 0}}}"
)

# what is wrong, the recipe, what the message says
RECIPES: list[tuple[str, str | bytes, list[str]]] = [
    ("empty", "", ["bad.yaml is empty", "stages:\n  - JsonlReader"]),
    ("only a comment", "# later\n", ["bad.yaml is empty"]),
    ("not a map", READ, ["must begin with names such as `stages:`"]),
    ("no stages", "name: x\n", ["bad.yaml: 'stages' is missing"]),
    ("null stages", "stages:\n", ["`stages` is empty"]),
    ("empty stages", "stages: []\n", ["`stages` is empty"]),
    ("stages as text", "stages: JsonlReader\n", ["`stages` is 'JsonlReader', and must be a list"]),
    ("stages as a map", f"stages:\n{READ}{WRITE}".replace("- ", ""),
     ["`stages` must be a list, with `- ` before each stage", "  - JsonlReader: ...\n  - JsonlWriter: ..."]),
    ("tabs", f"stages:\n\t- JsonlReader: {{}}\n{WRITE}", ["bad.yaml, line 2: indented with a tab", "use spaces"]),
    ("tabs before a parameter", "stages:\n  - JsonlReader:\n\t  file_paths: data\n", ["line 3: indented with a tab"]),
    ("unclosed brace", f"stages:\n  - JsonlReader: {{file_paths: data\n{WRITE}",
     ["bad.yaml, line 3: not valid YAML", "Check quotes, brackets and indentation:\n  - JsonlWriter: {path: out}"]),
    ("two documents", f"stages:\n{READ}---\nname: x\n", ["bad.yaml, line 3: a recipe is one document"]),
    ("key twice", f"stages:\n{READ}stages:\n{READ}", ["line 3: duplicate key 'stages': remove one of the two"]),
    ("parameter twice", "stages:\n  - JsonlReader:\n      limit: 1\n      limit: 2\n",
     ["line 4: duplicate key 'limit'"]),
    ("unknown key", f"stages:\n{READ}{WRITE}excutor: local\n", ["there is no 'excutor'", "Did you mean 'executor'?"]),
    ("vars as text", f"vars: x\nstages:\n{READ}", ["bad.yaml: vars must be names with values", "not 'x'"]),
    ("not UTF-8", "name: café\n".encode("latin-1"), ["bad.yaml is not UTF-8 (byte 9): save it as UTF-8"]),
    ("UTF-16", "name: x\n".encode("utf-16"), ["bad.yaml is not UTF-8"]),
    ("no writer", f"stages:\n{READ}", ["bad.yaml has no writer", "`- JsonlWriter: {path: out}`", "gristmill preview"]),
    ("no reader", f"stages:\n{WRITE}", ["starts with 'write_jsonl', which takes rows", "put a reader before it"]),
    ("writer before reader", f"stages:\n{WRITE}{READ}", ["'list_files' lists input, so it must be the first stage"]),
    ("unknown stage", f"stages:\n  - JsonReader: {{}}\n{WRITE}", ["stage 1: there is no stage", "mean 'JsonlReader'?"]),
    ("unknown filter", f"stages:\n{READ}  - ScoreFilter: {{filter_obj: WordCuontFilter}}\n",
     ["mean 'WordCountFilter'?"]),
    ("unknown module", "stages:\n  - no.such:Thing: {}\n",
     ["No module named 'no'. Is its directory on the Python path"]),
    ("unknown parameter", "stages:\n  - JsonlReader: {file_path: data}\n", ["Did you mean 'file_paths'?"]),
    ("missing parameter", "stages:\n  - JsonlReader: {}\n", ["stage 1 (JsonlReader): 'file_paths' must be given"]),
    ("parameters as text", "stages:\n  - JsonlReader: data\n", ["must be written name: value, not 'data'"]),
    ("parameters not indented", "stages:\n  - JsonlReader:\n    file_paths: data\n",
     ["are indented below the class name"]),
    ("empty entry", f"stages:\n{READ}  -\n{WRITE}", ["stage 2: a stage must be one class name"]),
    ("text for a list", f"stages:\n{READ}  - JsonlWriter: {{path: out, fields: text}}\n",
     ["stage 2 (JsonlWriter): fields is 'text': must be a list, as in [text]"]),
    ("text for a number", f"stages:\n{READ}  - ScoreFilter: {{filter_obj: {{WordCountFilter: {{min_words: many}}}}}}\n",
     ["min_words is 'many': must be a whole number"]),
    ("list for text", f"stages:\n{READ}  - JsonlWriter: {{path: out, compression: [gzip]}}\n", ["must be text"]),
    ("negative size", "stages:\n  - JsonlReader: {file_paths: data, blocksize: -1}\n", ["1 or more", "not -1"]),
    ("variable not defined", "stages:\n  - JsonlReader: {file_paths: '${input}'}\n",
     ["'input' is not defined", "--set input"]),
    ("variable without value", "vars: {a: null}\nstages:\n  - JsonlReader: {file_paths: '${a}'}\n", ["--set a="]),
    ("unknown executor", f"stages:\n{READ}{WRITE}executor: spark\n", ["no executor 'spark'", "Valid names: local"]),
    ("unknown column", f"stages:\n{READ}  - ScoreFilter: {{filter_obj: WordCountFilter, text_field: txet}}\n{WRITE}",
     ["needs column 'txet'", "Did you mean 'text'?"]),
    ("input that is not there", f"stages:\n  - JsonlReader: {{file_paths: dat}}\n{WRITE}",
     ["dat does not exist. Did you mean"]),
    ("output over the input", f"stages:\n{READ}  - JsonlWriter: {{path: data}}\n",
     ["choose an output directory outside"]),
    ("output is a file", f"stages:\n{READ}  - JsonlWriter: {{path: bad.yaml}}\n", ["is a file", "Choose another path"]),
    ("unknown protocol", f"stages:\n  - JsonlReader: {{file_paths: 's4://a/b'}}\n{WRITE}",
     ["not known: s4 (such as s3"]),
    ("S3 input without credentials", f"stages:\n  - JsonlReader: {{file_paths: 's3://a-b/c'}}\n{WRITE}",
     ["s3://a-b/c cannot be listed: there are no credentials", "Set AWS_ACCESS_KEY_ID", "anon: true"]),
    ("S3 output without credentials", f"stages:\n{READ}  - JsonlWriter: {{path: 's3://a-b/c'}}\n",
     ["cannot write to s3://a-b/c: there are no credentials", "Set AWS_ACCESS_KEY_ID"]),
    ("unreachable S3 input", f"stages:\n  - JsonlReader: {{file_paths: 's3://b/c', {UNREACHABLE}}}\n{WRITE}",
     ["s3://b/c cannot be listed: its server cannot be reached", "endpoint_url"]),
    ("unreachable S3 output", f"stages:\n{READ}  - JsonlWriter: {{path: 's3://b/c', {UNREACHABLE}}}\n",
     ["cannot write to s3://b/c: its server cannot be reached", "endpoint_url"]),
    ("unreachable host", f"stages:\n  - JsonlReader: {{file_paths: 'http://127.0.0.1:9/a.jsonl'}}\n{WRITE}",
     ["http://127.0.0.1:9/a.jsonl was not found, or its server cannot be reached"]),
    ("unreachable tokenizer", f"stages:\n{READ}  - MegatronTokenizerWriter: {{path: out, model_identifier: a/b}}\n",
     ["the tokenizer 'a/b' is not in the cache", "http://127.0.0.1:9 cannot be reached", "tokenizer.json"]),
]  # fmt: skip


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with one file of input, no credentials and no hub."""
    from huggingface_hub import constants
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()  # other tests may have opened a store with these credentials and endpoint
    monkeypatch.chdir(tmp_path)
    aws = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
    for name in (*aws, "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    Path("data").mkdir()
    Path("data", "a.jsonl").write_text('{"text": "some words"}\n')


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["run", "--workers", "0", *arguments])


@pytest.mark.parametrize(("recipe", "says"), [row[1:] for row in RECIPES], ids=[row[0] for row in RECIPES])
def test_a_recipe_that_cannot_work_says_what_to_do(recipe: str | bytes, says: list[str]) -> None:
    Path("bad.yaml").write_bytes(recipe if isinstance(recipe, bytes) else recipe.encode())
    done = run("bad.yaml")
    assert done.exit_code == 2, done.output
    assert all(words in done.stderr for words in says), done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.output
    assert len(done.output.splitlines()) <= 5
    assert not Path("out").exists()


def test_no_file_and_a_directory_are_no_recipes() -> None:
    for name, says in (("fine-web", "Did you mean 'fineweb'?"), ("data", "data is a directory")):
        done = run(name)
        assert (done.exit_code, says in done.stderr) == (2, True), done.output


def test_rows_may_go_nowhere_when_scores_are_kept() -> None:
    Path("scores.yaml").write_text(f"stages:\n{READ}  - ScoreFilter: {{filter_obj: WordCountFilter}}\n")
    done = run("scores.yaml", "--scores", "--run-dir", "run")
    assert done.exit_code == 0, done.output


def test_an_unexpected_error_is_one_line_and_v_shows_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("broken_stage.py").write_text(
        "from gristmill import ProcessingStage\n\n\nclass Broken(ProcessingStage):\n"
        "    def check(self):\n        raise KeyError('colour')\n\n    def process(self, task):\n        return task\n"
    )
    monkeypatch.syspath_prepend(str(Path.cwd()))
    Path("broken.yaml").write_text(f"stages:\n{READ}  - broken_stage:Broken: {{}}\n{WRITE}")
    done = run("broken.yaml")
    assert (done.exit_code, done.stderr) == (1, "error: KeyError: 'colour'\n(-v shows the traceback)\n")
    assert isinstance(run("broken.yaml", "-v").exception, KeyError)


def test_a_warning_is_one_line_without_the_place_in_the_code() -> None:
    with warnings.catch_warnings(), exit_on_error(False):
        messages = warnings.formatwarning(RuntimeWarning("few rows\x1b[2J"), RuntimeWarning, "segment_runner.py", 82)
    assert messages == "warning: few rows [2J\n"
    assert warnings.formatwarning("x", RuntimeWarning, "a.py", 1).startswith("a.py:1: RuntimeWarning: x")
