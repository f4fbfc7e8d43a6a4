"""`gristmill migrate`: imports are rewritten, everything else stays, and what would not run is said by line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gristmill.cli.main import app
from gristmill.migrate import create_pipeline_from_yaml, find_name, rewrite_file, rewrite_script

ROOT = Path(__file__).parents[2]
S = "nemo_curator.stages"
MODULES = f"from {S}.text.modules import"
TASKS = "from nemo_curator.tasks import DocumentBatch\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("from nemo_curator.pipeline import Pipeline  # why\n", "from gristmill import Pipeline  # why\n"),
        (
            f"from {S}.text.modules import AddId, ScoreFilter as S\n",
            "from gristmill.text import AddId, ScoreFilter as S\n",
        ),
        (
            f"if x:\n    from {S}.text.io.reader import (\n        JsonlReader,\n        JsonlReaderStage,\n    )\n",
            "if x:\n    from gristmill.text import JsonlReader, JsonlReaderStage\n",
        ),
        (
            "from nemo_curator.backends.base import BaseExecutor\n",
            "from gristmill.core.executor import Executor as BaseExecutor\n",
        ),
        ("import nemo_curator as nc\nnc.pipeline.Pipeline('é')\n", "import gristmill\ngristmill.Pipeline('é')\n"),
        (
            f"import os, {S}.text.modules\nx = {S}.text.modules.AddId('id')\n",
            "import os\nimport gristmill\nimport gristmill.text\nx = gristmill.text.AddId('id')\n",
        ),
        (
            f"from {S}.text import filters as f\nf.WordCountFilter(3).score_document('é')\n",
            "import gristmill\nimport gristmill.text\ngristmill.text.WordCountFilter(3).score_document('é')\n",
        ),
        (f"x = '{S}.text.io.reader.JsonlReader'\n", "x = 'gristmill.text.JsonlReader'\n"),
        ("import nemo_curator_tools\nx = 1  # nemo_curator\n", "import nemo_curator_tools\nx = 1  # nemo_curator\n"),
    ],
)
def test_imports_and_paths_are_rewritten(old: str, new: str) -> None:
    result = rewrite_script(old)
    assert (result.text, result.findings) == (new, [])
    assert rewrite_script(new).text == new


@pytest.mark.parametrize(
    ("script", "kind", "text"),
    [
        (f"from {S}.text.nowhere import NoSuchStage\n", "error", "NoSuchStage is not in Gristmill"),
        (f"from {S}.deduplication.fuzzy.lsh.stage import LSHStage\n", "error", "FuzzyDeduplicationWorkflow does all"),
        (
            f"from {S}.text.modules import AddId\nAddId('i', prefix='p')\n",
            "error",
            "AddId has no parameter 'prefix'. Did you",
        ),
        (
            "from nemo_curator.tasks import DocumentBatch\nDocumentBatch(task_id='a', data=[])\n",
            "error",
            "leave task_id= out",
        ),
        ("import nemo_curator as nc\nnc.core.serve.InferenceServer()\n", "error", "start a server yourself"),
        (f"x = '{S}.text.Nothing'\n", "error", "Nothing is not in Gristmill"),
        ("batch.data.iterrows()\n", "note", "use to_pandas()"),
        ("import nemo_curator\nx = (\n", "error", "not Python that can be read"),
    ],
)
def test_what_is_missing_or_differs_is_said(script: str, kind: str, text: str) -> None:
    findings = rewrite_script(script).findings
    assert [one for one in findings if one.kind == kind and text in one.text], findings


def test_every_public_name_is_found_or_said_to_be_missing() -> None:
    """The names of NeMo Curator 1.4.0, each with its module."""
    names = json.loads((Path(__file__).parent / "curator_names.json").read_text())
    unsaid = []
    for path in [*names["here"], *names["missing"]]:
        module, _, name = f"nemo_curator.{path}".rpartition(".")
        place = find_name(module, name)
        if place is not None:
            assert place.load() is not None
        elif path in names["here"] or not any(
            "not in Gristmill: " in one.text for one in rewrite_script(f"from {module} import {name}").findings
        ):
            unsaid.append(path)
    assert unsaid == []
    page = " ".join((ROOT / "docs" / "migrate.md").read_text().split())
    here, missing = len(names["here"]), len(names["missing"])
    assert f"Of {here + missing} public names of NeMo Curator 1.4.0, {here} are here" in page
    assert f"for the other {missing}," in page


def test_parameters_of_a_configuration_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(YAML.replace("min_words: 2", "min_wrds: 2").replace("path: $", "folder: $"))
    found = [(one.line, one.kind, one.text) for one in rewrite_file(path).findings]
    assert found == [
        (10, "error", "WordCountFilter has no parameter 'min_wrds'. Did you mean 'min_words'?"),
        (13, "error", "JsonlWriter has no parameter 'folder'. Did you mean 'mode'?"),
    ]
    path.write_text(YAML)
    assert rewrite_file(path).findings == []
    path.write_text("a: [nemo_curator.x")
    assert [one.text[:26] for one in rewrite_file(path).findings] == ["not YAML that can be read:"]


def test_metadata_of_tasks_is_no_problem() -> None:
    script = "from nemo_curator.tasks import DocumentBatch\nDocumentBatch(data=[], _metadata={}, _stage_perf=[])\n"
    assert rewrite_script(script).findings == []


@pytest.mark.parametrize("name", ["Pipeline", "DocumentBatch", "ImageBatch", "FileGroupTask", "ProcessingStage"])
def test_names_of_the_core_are_in_the_root_package(name: str) -> None:
    place = find_name("nemo_curator.anything", name)
    assert place is not None
    assert place.module == "gristmill"
    assert place.load().__name__ == name


NAMES = """
pipeline.Pipeline stages.base.ProcessingStage stages.base.CompositeStage stages.resources.Resources tasks.EmptyTask
stages.function_decorators.processing_stage core.client.RayClient core.client.SlurmRayClient tasks.FileGroupTask
backends.xenna.XennaExecutor backends.ray_data.RayDataExecutor backends.ray_actor_pool.RayActorPoolExecutor
backends.base.BaseExecutor backends.base.WorkerMetadata backends.base.NodeInfo tasks.Task tasks.DocumentBatch
tasks.ImageBatch stages.file_partitioning.FilePartitioningStage stages.text.io.reader.JsonlReader
stages.text.io.reader.ParquetReader stages.text.io.writer.JsonlWriter stages.text.io.writer.ParquetWriter
stages.text.io.writer.MegatronTokenizerWriter stages.text.modules.AddId stages.text.modules.DocumentSplitter
stages.text.modules.DocumentJoiner stages.text.filters.Score stages.text.filters.Filter
stages.text.filters.ScoreFilter stages.text.filters.DocumentFilter stages.text.modifiers.Modify
stages.text.modifiers.DocumentModifier stages.text.modifiers.UnicodeReformatter
stages.deduplication.exact.ExactDeduplicationWorkflow stages.deduplication.fuzzy.FuzzyDeduplicationWorkflow
stages.deduplication.semantic.SemanticDeduplicationWorkflow stages.text.deduplication.TextDuplicatesRemovalWorkflow
stages.text.download.CommonCrawlDownloadExtractStage stages.text.download.WikipediaDownloadExtractStage
stages.text.download.ArxivDownloadExtractStage stages.text.download.base.DocumentDownloader
stages.image.io.ImageReaderStage stages.image.io.ImageWriterStage stages.image.embedders.ImageEmbeddingStage
stages.image.filters.ImageAestheticFilterStage stages.image.filters.ImageNSFWFilterStage
"""


@pytest.mark.parametrize("path", NAMES.split())
def test_names_that_are_here_are_found_and_load(path: str) -> None:
    module, _, name = path.rpartition(".")
    place = find_name(f"nemo_curator.{module}", name)
    assert place is not None
    assert callable(place.load())


def test_cells_of_a_notebook_share_their_imports(tmp_path: Path) -> None:
    first = ["%pip install x\n", "import nemo_curator as nc\n", f"from {S}.text.modules import AddId\n"]
    cells = [
        {"cell_type": "markdown", "source": ["nemo_curator"]},
        {"cell_type": "code", "source": first},
        {"cell_type": "code", "source": ["AddId('i', nothing=1)\n", "nc.pipeline.Pipeline()"]},
    ]
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": cells, "nbformat": 4}))
    result = rewrite_file(path)
    sources = ["".join(cell["source"]) for cell in json.loads(result.text)["cells"]]
    assert sources[1] == "%pip install x\nimport gristmill\nfrom gristmill.text import AddId\n"
    assert sources[2].endswith("gristmill.Pipeline()")
    assert [one.text for one in result.findings] == ["cell 2: AddId has no parameter 'nothing'."]


SCRIPT = f"from {S}.text.modules import AddId\n"
YAML = f"""
in: ???
out: out
stages:
  - _target_: {S}.text.io.reader.JsonlReader
    file_paths: ${{in}}
  - _target_: {S}.text.filters.score_filter.ScoreFilter
    filter_obj:
      _target_: {S}.text.filters.heuristic.string.WordCountFilter
      min_words: 2
    resources: {{cpus: 0.5}}
  - _target_: {S}.text.io.writer.JsonlWriter
    path: ${{out}}
"""


def test_the_command_shows_writes_and_checks(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    script = tmp_path / "old" / "a.py"
    script.write_text(SCRIPT)
    (tmp_path / "old" / "b.yaml").write_text(YAML)
    shown = CliRunner().invoke(app, ["migrate", str(tmp_path / "old")])
    assert "+from gristmill.text import AddId" in shown.output
    assert script.read_text() == SCRIPT
    CliRunner().invoke(app, ["migrate", str(tmp_path / "old"), "-o", str(tmp_path / "new")])
    assert (tmp_path / "new" / "a.py").read_text() == "from gristmill.text import AddId\n"
    assert "_target_: gristmill.text.JsonlReader" in (tmp_path / "new" / "b.yaml").read_text()
    assert CliRunner().invoke(app, ["migrate", str(script), "--check"]).exit_code == 0
    script.write_text(SCRIPT + f"from {S}.text.nowhere import NoSuchStage\n")
    assert CliRunner().invoke(app, ["migrate", str(script), "--check"]).exit_code == 1
    assert CliRunner().invoke(app, ["migrate", str(script), "--write"]).exit_code == 0
    assert script.read_text().startswith("from gristmill.text import AddId\n")
    assert CliRunner().invoke(app, ["migrate", str(tmp_path / "none")]).exit_code == 2


@pytest.mark.parametrize("rewritten", [False, True])
def test_a_configuration_is_a_pipeline(rewritten: bool, tmp_path: Path) -> None:
    from gristmill import LocalExecutor

    (tmp_path / "in.jsonl").write_text('{"text": "one"}\n{"text": "one two"}\n')
    path = tmp_path / "a.yaml"
    path.write_text(YAML)
    path.write_text(rewrite_file(path).text if rewritten else YAML)
    given = {"in": str(tmp_path / "in.jsonl"), "out": str(tmp_path / "out")}
    pipeline = create_pipeline_from_yaml(path, **given)
    assert pipeline.stages[1].resources.cpus == 0.5
    pipeline.run(LocalExecutor(0))
    assert next((tmp_path / "out").glob("*.jsonl")).read_text() == '{"text":"one two"}\n'


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "either 'stages' or 'workflow', and this one has none"),
        ({"stages": [{"_target_": "os.system", "command": "true"}]}, "system is not in Gristmill"),
        ({"stages": [{"_target_": f"{S}.text.modules.AddId", "x": 1}]}, "stages\\[0\\] \\(AddId\\)"),
        ({"stages": [{"_target_": f"{S}.text.modules.AddId", "id_field": "${name}"}]}, "name must be given"),
        ("nowhere.yaml", "cannot be read"),
        (3, "must be a mapping"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(config: object, message: str) -> None:
    with pytest.raises(Exception, match=message):
        create_pipeline_from_yaml(config)
