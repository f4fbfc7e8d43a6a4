"""Listing inputs and sharing them out."""

import gzip
import time

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.core.errors import InputError
from gristmill.core.task import FileGroupTask
from gristmill.io.read.file_partitions import FilePartition, FilePartitioningStage

FILES = ["a.jsonl", "b.json", "c.ndjson", "d.jsonl.gz", "sub/deep/e.JSONL", "sub/f.jsonl.zst"]
JSONL = [f"{plain}{packed}" for plain in (".jsonl", ".json", ".ndjson") for packed in ("", ".gz", ".zst")]


@pytest.fixture
def data(tmp_path):
    root = tmp_path / "data"
    for name in [*FILES, ".hidden.jsonl", "_SUCCESS", ".git/x.jsonl", "_tmp/y.jsonl", "README", "sub/notes.txt"]:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"text": "hello"}\n')
    return root


def names(paths, **settings):
    settings.setdefault("file_extensions", JSONL)
    return [file.name for file in FilePartitioningStage(paths, **settings).files()]


def tasks_of(stage) -> list[list[FileGroupTask]]:
    return [list(source) for source in stage.sources()]


def fails(paths, **settings) -> str:
    settings.setdefault("file_extensions", JSONL)
    began = time.perf_counter()
    with pytest.raises(InputError) as raised:
        FilePartitioningStage(paths, **settings).check()
    assert time.perf_counter() - began < 1
    message = str(raised.value)
    assert message.startswith("stage 'list_files': ")
    return message


# -- listing ---------------------------------------------------------------------------------------------


def test_a_directory_is_listed_recursively_without_hidden_names(data):
    assert names(str(data)) == FILES
    assert names(f"{data}/") == FILES
    assert names(data) == FILES


def test_a_relative_path(data, monkeypatch):
    monkeypatch.chdir(data.parent)
    assert names("data") == FILES
    assert FilePartitioningStage("data").files()[0].path == f"{data}/a.jsonl"
    monkeypatch.chdir(data)
    assert names(".") == FILES


def test_globs(data):
    assert names(f"{data}/*.jsonl") == ["a.jsonl"]
    assert names(f"{data}/**/*.jsonl*") == ["a.jsonl", "d.jsonl.gz", "sub/f.jsonl.zst"]
    assert names(f"{data}/*") == FILES  # directories that match are listed too
    assert names(f"{data.parent}/d*/sub/*.zst") == ["data/sub/f.jsonl.zst"]
    assert names(f"{data}/.hidden*") == [".hidden.jsonl"]


def test_a_name_with_glob_marks_that_exists_is_that_file(tmp_path):
    path = tmp_path / "what [is] this?.jsonl"
    path.write_text("{}\n")
    assert names(str(path)) == ["what [is] this?.jsonl"]


def test_names_with_spaces_and_other_scripts(tmp_path):
    for name in ("über uns.jsonl", "日本語 #1.jsonl", "100%.jsonl"):
        (tmp_path / name).write_text("{}\n")
    assert names(tmp_path) == ["100%.jsonl", "über uns.jsonl", "日本語 #1.jsonl"]


def test_a_named_file_is_taken_whatever_its_extension(data):
    assert names(f"{data}/README") == ["README"]
    assert names(f"{data}/.hidden.jsonl") == [".hidden.jsonl"]


def test_a_list_is_sorted_and_without_doubles(data):
    roots = [f"{data}/sub", f"{data}/b.json", f"{data}/a.jsonl", f"{data}/a.jsonl", f"{data}/sub/*"]
    want = ["a.jsonl", "b.json", "sub/deep/e.JSONL", "sub/f.jsonl.zst"]
    assert names(roots) == [f"{data}/{name}" for name in sorted(want)]
    assert names([f"{data}/sub"]) == ["deep/e.JSONL", "f.jsonl.zst"]


def test_links_are_followed_but_not_in_circles(data, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "z.jsonl").write_text("{}\n")
    (data / "linked").symlink_to(elsewhere)
    (data / "sub" / "again").symlink_to(data)
    (data / "latest.jsonl").symlink_to(data / "a.jsonl")
    found = FilePartitioningStage(data, file_extensions=JSONL).files()
    assert [file.name for file in found] == sorted([*FILES, "latest.jsonl", "linked/z.jsonl"])
    assert all(file.size for file in found)


def test_links_to_nowhere_and_in_circles_are_listed_as_they_are(data):
    (data / "gone.jsonl").symlink_to(data / "nowhere")
    (data / "round.jsonl").symlink_to(data / "round.jsonl")
    found = {file.name: file.size for file in FilePartitioningStage(data, file_extensions=JSONL).files()}
    assert found.keys() == {*FILES, "gone.jsonl", "round.jsonl"}
    assert found["gone.jsonl"] is found["round.jsonl"] is None


def test_memory_urls():
    system = fsspec.filesystem("memory")
    for name in ("/box/a.jsonl", "/box/sub/b.jsonl.gz", "/box/_x.jsonl"):
        system.pipe(name, b"{}\n")
    assert names("memory://box") == ["a.jsonl", "sub/b.jsonl.gz"]
    assert names("memory://box/*.jsonl") == ["a.jsonl"]
    assert names("memory://box/a.jsonl") == ["a.jsonl"]
    assert FilePartitioningStage("memory://box").files()[0].path == "memory:///box/a.jsonl"
    assert "Did you mean 'box'?" in fails("memory://bux")
    system.rm("/box", recursive=True)


def test_a_chained_url(data, tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("in/x.jsonl", "{}\n")
    stage = FilePartitioningStage(f"zip://in::{tmp_path}/a.zip")
    assert [(file.name, file.path) for file in stage.files()] == [("x.jsonl", f"zip://in/x.jsonl::{tmp_path}/a.zip")]


# -- errors ----------------------------------------------------------------------------------------------


def test_nothing_is_listed_by_the_constructor():
    FilePartitioningStage("/no/such/place")
    FilePartitioningStage([])


def test_a_missing_path_names_its_neighbour(data):
    assert fails(f"{data}/a.jsonll").endswith("a.jsonll does not exist. Did you mean 'a.jsonl'?")
    assert "Did you mean 'data'?" in fails(f"{data.parent}/dataa/sub/x.jsonl")
    assert "'dataa' is not in" in fails(f"{data.parent}/dataa/sub/x.jsonl")
    assert "there are: README, a.jsonl" in fails(f"{data}/something-else-entirely")
    assert "does not exist" in fails(f"{data}/a.jsonl/x")
    assert "Did you mean 'data'?" in fails(f"{data.parent}/dta/*.jsonl")


def test_a_glob_that_matches_nothing(data):
    assert "matches no file" in fails(f"{data}/*.nothing")


def test_a_directory_without_a_match_says_what_is_there(tmp_path):
    for name in ("a.parquet", "b.parquet", "c.parquet", "d.csv.gz"):
        (tmp_path / name).touch()
    message = fails(tmp_path)
    assert "no file that ends in .jsonl, .jsonl.gz" in message
    assert message.endswith("There are 3 .parquet files, 1 .csv.gz file: use ParquetReader")
    assert message == fails(f"{tmp_path}/*").replace("/*", "")


def test_a_directory_of_other_files(tmp_path):
    (tmp_path / "a.log").touch()
    assert fails(tmp_path).endswith("There is 1 .log file: to read them anyway, pass file_extensions=['.log']")
    (tmp_path / "a.log").rename(tmp_path / "log")
    assert "name them in a list" in fails(tmp_path)


def test_an_empty_directory_and_an_empty_list(tmp_path):
    assert "no files at all" in fails(tmp_path)
    assert "list of input paths is empty" in fails([])
    assert "path is empty" in fails([""])


def test_an_unknown_protocol():
    assert "cannot be opened" in fails("gopher://x/y")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"files_per_partition": 0}, "files_per_partition"),
        ({"limit": 0}, "limit"),
        ({"blocksize": "big"}, "size"),
        ({"file_extensions": []}, "file_extensions"),
        ({"split_by": "words"}, "split_by"),
    ],
)
def test_wrong_settings(settings, word):
    with pytest.raises(ValueError, match=word):
        FilePartitioningStage("x", **settings)


# -- partitions ------------------------------------------------------------------------------------------


def test_one_file_is_one_partition(data):
    sources = tasks_of(FilePartitioningStage(data, file_extensions=JSONL))
    assert [[task.data for task in source] for source in sources] == [[[f"{data}/{name}"]] for name in FILES]
    assert all(isinstance(task, FilePartition) for source in sources for task in source)
    assert sources[0][0].dataset_name == "data"


def test_files_are_grouped_and_small_ones_share_a_task(data):
    sources = tasks_of(FilePartitioningStage(data, files_per_partition=4, file_extensions=JSONL))
    assert [len(source) for source in sources] == [1, 1]
    assert [len(source[0].parts()) for source in sources] == [4, 2]
    assert len(tasks_of(FilePartitioningStage(data, limit=2, file_extensions=JSONL))) == 2


@pytest.mark.parametrize("blocksize", [1, 7, 18, 100, "16MB"])
def test_blocksize_cuts_partitions_but_does_not_change_them(data, blocksize):
    sources = tasks_of(FilePartitioningStage(data, 3, blocksize, JSONL))
    plain = tasks_of(FilePartitioningStage(data, 3, None, JSONL))
    assert [source[0].key() for source in sources] == [source[0].key() for source in plain]
    for source in sources:
        assert len({task.key() for task in source}) == 1
        for path in source[0].data:
            parts = [part for task in source for part in task.parts() if part.path == path]
            if path.endswith((".gz", ".zst")):
                assert [(part.start, part.end) for part in parts] == [(0, None)]
            else:
                assert [part.start for part in parts] == [0, *(part.end for part in parts[:-1])]
                assert parts[-1].end == 18


def test_content_that_is_compressed_is_not_cut(tmp_path):
    (tmp_path / "lies.jsonl").write_bytes(gzip.compress(b'{"a": 1}\n' * 100))
    [[task]] = tasks_of(FilePartitioningStage(tmp_path, blocksize=10))
    assert [(part.start, part.end) for part in task.parts()] == [(0, None)]


def test_an_empty_file_is_a_partition(tmp_path):
    (tmp_path / "a.jsonl").touch()
    [[task]] = tasks_of(FilePartitioningStage(tmp_path))
    assert [(part.start, part.end) for part in task.parts()] == [(0, 0)]


def test_keys_do_not_depend_on_where_the_dataset_lies(data, tmp_path):
    before = [(task.key(), task.metadata) for [task] in tasks_of(FilePartitioningStage(data))]
    moved = data.rename(tmp_path / "elsewhere")
    after = [(task.key(), task.metadata) for [task] in tasks_of(FilePartitioningStage(f"{moved}/**"))]
    assert before == after
    assert len({key for key, _ in before}) == len(before)


def test_partition_names_are_readable_and_fit_for_files(data):
    tasks = [task for [task] in tasks_of(FilePartitioningStage(data, file_extensions=JSONL))]
    assert [task.stem for task in tasks] == ["a", "b", "c", "d", "sub-deep-e", "sub-f"]
    assert tasks[4].metadata == {"partition": f"sub-deep-e-{tasks[4].key()[:8]}"}
    odd = [FilePartition(["x"], names=(name,)).stem for name in ("s3://b/p q/é?.jsonl.gz", "x.tar/..jsonl", "y" * 500)]
    assert odd[:2] == ["s3-b-p-q-é", "x.tar"]
    assert len(odd[2]) == 120


def test_listing_happens_once(data, monkeypatch):
    calls = []
    real = __import__("gristmill.io.read.file_partitions", fromlist=["list_files"]).list_files
    monkeypatch.setattr("gristmill.io.read.file_partitions.list_files", lambda *args: calls.append(1) or real(*args))
    stage = FilePartitioningStage(data)
    stage.check()
    next(stage.sources())
    tasks_of(stage)
    assert len(calls) == 1


def test_parquet_is_cut_by_row_groups(tmp_path):
    table = pa.table({"text": [f"row {n} " * 20 for n in range(1000)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100, use_dictionary=False, compression="none")
    [source] = tasks_of(FilePartitioningStage(tmp_path, blocksize=50_000))
    groups = [part.row_groups for task in source for part in task.parts()]
    assert [number for group in groups for number in group] == list(range(10))
    assert len(groups) > 2
    assert [part.row_groups for [task] in tasks_of(FilePartitioningStage(tmp_path)) for part in task.parts()] == [None]


def test_what_only_looks_like_parquet_is_left_to_its_reader(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"x" * 100)
    [[task]] = tasks_of(FilePartitioningStage(tmp_path, blocksize=10))
    assert task.parts()[0].row_groups is None


@pytest.mark.parametrize("name", ["files_per_partition", "limit"])
def test_true_is_no_number_of_files(tmp_path, name):
    with pytest.raises(ValueError, match=f"{name} is True"):
        FilePartitioningStage(tmp_path, **{name: True})
