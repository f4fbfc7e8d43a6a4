"""A snapshot is deduplicated against an index of earlier ones, as if all had been there at once; and runs add to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill import DocumentBatch, LocalExecutor, Pipeline
from gristmill.core.arrow.hash_partitioning import partition_numbers
from gristmill.core.errors import GristmillError, InputError, PlanError
from gristmill.dedup import DedupIndex, ExactDeduplicationStage, FuzzyDeduplicationStage
from gristmill.dedup.index.index_files import overlapping_ranges
from tests.dedup.index_snapshots import NEW, OLD, ONLY_NEW, STAGES, ids, indexed, numbered, run, text, write

# -- what is found -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
def test_only_what_is_new_is_kept_and_partners_are_named(tmp_path: Path, stage: str) -> None:
    index = indexed(stage, tmp_path, num_partitions=3)
    assert len(DedupIndex(index)) == 60
    new = write(tmp_path / "new", x=NEW)  # the file has the name of an old one
    result = run(
        new,
        tmp_path / "out",
        STAGES[stage](id_field="id", against=[index], num_partitions=5),
        tmp_path / "run",
        rejected=True,
    )
    assert ids(tmp_path / "out") == ONLY_NEW
    rows = {row["id"]: row for row in pq.read_table(tmp_path / "run" / "clusters").to_pylist()}
    first = {row["id"]: row["partner"] for row in rows.values() if not row["kept"] and row["snapshot"] == "old"}
    assert first == {f"b{number}": f"a{number % 80 + 40}" for number in range(120) if number % 80 < 20}
    assert rows["b101"] == {
        "id": "b101",
        "cluster": "b21",
        "kept": False,
        "partner": "b21",
        "similarity": 1.0,
        "snapshot": None,
    }
    assert not any(name.startswith("a") for name in rows)
    dropped = {row["id"]: row for path in result.rejected() for row in pq.read_table(path).to_pylist()}
    assert (dropped["b0"]["rejected_partner"], dropped["b0"]["rejected_snapshot"]) == ("a40", "old")
    assert DedupIndex(index).versions == [1]


@pytest.mark.parametrize("stage", STAGES)
def test_it_is_as_if_all_had_been_there_at_once(tmp_path: Path, stage: str) -> None:
    index = indexed(stage, tmp_path)
    run(write(tmp_path / "new", x=NEW), tmp_path / "out", STAGES[stage](id_field="id", extend=index))
    both = write(tmp_path / "both", x1=OLD, x2=NEW)
    run(both, tmp_path / "both-out", STAGES[stage](id_field="id"))
    assert ids(tmp_path / "old-out") + ids(tmp_path / "out") == ids(tmp_path / "both-out")
    [mine], [theirs] = (tmp_path / "out").glob("*.jsonl"), (tmp_path / "both-out").glob("x2*.jsonl")
    assert mine.read_bytes() == theirs.read_bytes()
    assert [one["documents"] for one in DedupIndex(index).info()["snapshots"]] == [60, 60]
    third = run(both, tmp_path / "third", STAGES[stage](id_field="id", against=[index]))
    assert third.summary().rows_out == 0


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.sampled_from([None, "", "a", "b", "ab", "水", "c", "d"]), max_size=9), max_size=4),
    st.lists(st.integers(1, 7), min_size=4, max_size=4),
)
def test_snapshot_after_snapshot(
    tmp_path_factory: pytest.TempPathFactory, snapshots: list[list[Any]], partitions: list[int]
) -> None:
    index = str(tmp_path_factory.mktemp("index"))
    seen: set[str] = set()
    for texts, number in zip(snapshots, partitions, strict=False):
        wanted = [n for n, one in enumerate(texts) if one is None or (one not in seen and one not in texts[:n])]
        stage = ExactDeduplicationStage(extend=index, num_partitions=number, keep="first")
        tasks = [DocumentBatch([{"n": n, "text": one} for n, one in enumerate(texts)])]
        result = Pipeline("p", stages=[stage]).run(LocalExecutor(0), initial_tasks=tasks)
        assert [row["n"] for task in result for row in task.to_rows()] == wanted
        seen |= {one for one in texts if one is not None}
    assert len(DedupIndex(index)) == len(seen)


WORDS = [f"word{number}" for number in range(40)]


@pytest.mark.parametrize("options", [{}, {"verify": "signature"}, {"verify": "none"}, {"char_ngrams": 5}])
def test_texts_that_are_nearly_known(tmp_path: Path, options: dict[str, Any]) -> None:
    """One is like a known text, one only like that one, two are like each other and one is alone."""
    chain = [" ".join([*WORDS[:39], "x"]), " ".join(["y", *WORDS[1:39], "x"])]
    pair = [" ".join(f"{word}-{end}" for word in WORDS[:30]) + last for end, last in (("a", ""), ("a", " more"))]
    given, options = (
        options,
        {"word_ngrams": None if "char_ngrams" in options else 1, "threshold": 0.92, "id_field": "id", **options},
    )
    index = DedupIndex(tmp_path / "index", snapshot="old")
    old = write(tmp_path / "old", x=numbered("a", [" ".join(WORDS), text(1), text(2)]))
    run(old, tmp_path / "1", FuzzyDeduplicationStage(extend=index, num_partitions=2, **options))
    new = write(tmp_path / "new", x=numbered("b", [*chain, *pair, text(3), text(2)]))
    run(new, tmp_path / "2", FuzzyDeduplicationStage(against=[index], num_partitions=3, **options), tmp_path / "run")
    assert ids(tmp_path / "2") == ["b2", "b4"]
    rows = {row["id"]: row for row in pq.read_table(tmp_path / "run" / "clusters").to_pylist()}
    assert {name: row["cluster"] for name, row in rows.items()} == {
        "b0": "a0",
        "b1": "a0",
        "b2": "b2",
        "b3": "b2",
        "b5": "a2",
    }
    partners = {name: (row["partner"], row["snapshot"]) for name, row in rows.items() if name != "b1" or not given}
    assert partners["b0"] == ("a0", "old")
    assert partners.get("b1", ("b0", None)) == ("b0", None)  # which an estimate may put beside the known one
    assert (partners["b2"], partners["b3"], partners["b5"]) == ((None, None), ("b2", None), ("a2", "old"))
    if options.get("verify") != "none":
        assert 0.88 <= rows["b0"]["similarity"] < 1.0
        assert rows["b5"]["similarity"] == 1.0


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.integers(0, 12), max_size=14), min_size=2, max_size=4), st.integers(1, 4))
def test_near_snapshot_after_near_snapshot(
    tmp_path_factory: pytest.TempPathFactory, snapshots: list[list[int]], partitions: int
) -> None:
    """Texts of one number differ in one word of forty; of each number the first is kept."""
    index = str(tmp_path_factory.mktemp("index"))
    seen: set[int] = set()
    for number, snapshot in enumerate(snapshots):
        rows = [
            {"n": n, "text": " ".join(f"{word}-{group}" for word in WORDS[:-1]) + f" {number}{n}"}
            for n, group in enumerate(snapshot)
        ]
        stage = FuzzyDeduplicationStage(word_ngrams=1, extend=index, num_partitions=partitions)
        result = Pipeline("p", stages=[stage]).run(LocalExecutor(0), initial_tasks=[DocumentBatch(rows)])
        wanted = [n for n, group in enumerate(snapshot) if group not in seen and group not in snapshot[:n]]
        assert [row["n"] for task in result for row in task.to_rows()] == wanted
        seen |= set(snapshot)
    assert len(DedupIndex(index)) == len(seen)


def test_what_is_known_comes_first_whatever_is_kept_otherwise(tmp_path: Path) -> None:
    old, new = (
        [{"id": "a", "text": "x", "q": 0.1}],
        [{"id": "b", "text": "X", "q": 0.9}, {"id": "c", "text": "y", "q": 1.0}],
    )
    stage = {"id_field": "id", "normalize": ["case"], "keep": "highest", "score_field": "q"}
    index = str(tmp_path / "index")
    run(write(tmp_path / "old", x=old), tmp_path / "1", ExactDeduplicationStage(extend=index, **stage))
    run(write(tmp_path / "new", x=new), tmp_path / "2", ExactDeduplicationStage(against=[index], **stage))
    assert ids(tmp_path / "2") == ["c"]


@pytest.mark.parametrize("stage", STAGES)
def test_rows_without_ids_are_told_apart_from_those_of_the_index_at_the_same_place(tmp_path: Path, stage: str) -> None:
    index = DedupIndex(tmp_path / "index", snapshot="old")
    run(write(tmp_path / "old", x=numbered("a", [text(1)])), tmp_path / "out", STAGES[stage](extend=index))
    new = write(tmp_path / "new", x=numbered("b", [text(2), text(2), text(1), text(1)]))
    run(new, tmp_path / "new-out", STAGES[stage](against=[index]), tmp_path / "run")
    table = pq.read_table(tmp_path / "run" / "clusters").to_pylist()
    first = next(row["id"] for row in table if row["kept"])  # at the place of the only row of the index
    assert sorted(row["cluster"] for row in table) == [first, first, f"old:{first}", f"old:{first}"]
    found = {row["partner"]: row["snapshot"] for row in table}
    assert found == {None: None, first: None, f"old:{first}": "old"}


def test_several_indexes(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("one", "two")]
    for path, texts in zip(paths, (["a"], ["b"]), strict=True):
        run(
            write(tmp_path / "in" / path[-3:], x=numbered("i", texts)),
            tmp_path / "o",
            ExactDeduplicationStage(extend=path),
        )
    new = write(tmp_path / "new", x=numbered("n", ["a", "b", "c"]))
    run(new, tmp_path / "out", ExactDeduplicationStage(against=[paths[0]], extend=paths[1]))
    assert ids(tmp_path / "out") == ["n2"]
    assert [len(DedupIndex(path)) for path in paths] == [1, 2]


# -- what can be wrong ---------------------------------------------------------------------------------------


def test_empty_snapshots_and_empty_indexes(tmp_path: Path) -> None:
    index = str(tmp_path / "index")
    empty = [DocumentBatch([])]
    assert DedupIndex(index).versions == []
    assert len(DedupIndex(index)) == 0
    Pipeline("p", stages=[ExactDeduplicationStage(extend=index)]).run(LocalExecutor(0), initial_tasks=empty)
    assert (DedupIndex(index).versions, len(DedupIndex(index))) == ([1], 0)
    tasks = [DocumentBatch(numbered("a", ["x", "x", None]))]
    stage = ExactDeduplicationStage(against=[index])
    assert Pipeline("p", stages=[stage]).run(LocalExecutor(0), initial_tasks=tasks).summary().rows_out == 2
    stage = ExactDeduplicationStage(extend=index)
    Pipeline("p", stages=[stage]).run(LocalExecutor(0), initial_tasks=tasks)
    Pipeline("p", stages=[stage]).run(LocalExecutor(0), initial_tasks=empty)
    assert (DedupIndex(index).versions, len(DedupIndex(index))) == ([1, 2], 1)


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (
            lambda index: ExactDeduplicationStage(against=[index], normalize=["case"]),
            r"'ExactDeduplicationStage'.*other parameters: normalize is \[\] there and \['case'\] here",
        ),
        (lambda index: ExactDeduplicationStage(extend=index, normalize=["case"]), "normalize is"),
        (lambda index: ExactDeduplicationStage(against=[f"{index}-not"]), "no index at .*index-not.*extend="),
        (
            lambda index: ExactDeduplicationStage(against=[DedupIndex(index, version=7)]),
            "no version 7. Its versions: 1",
        ),
        (
            lambda index: ExactDeduplicationStage(extend=DedupIndex(index, version=1)),
            "extend always adds to the last version",
        ),
        (lambda index: ExactDeduplicationStage(against=[index], url_field="text"), "'values' there and 'URLs' here"),
        (lambda index: FuzzyDeduplicationStage(against=[index]), "is for exact deduplication, but this stage is fuzzy"),
    ],
)
def test_an_index_that_does_not_fit_is_refused_before_the_run(tmp_path: Path, stage: Any, message: str) -> None:
    index = indexed("exact", tmp_path)
    with pytest.raises(PlanError, match=message):
        Pipeline("p", stages=[stage(index)]).plan([DocumentBatch(OLD)])


def test_a_file_is_no_index(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for options in ({"extend": str(tmp_path / "file")}, {"against": [str(tmp_path / "file")]}):
        with pytest.raises(InputError, match="is a file, but an index is a directory"):
            Pipeline("p", stages=[ExactDeduplicationStage(**options)]).plan([DocumentBatch(OLD)])


def test_an_index_of_other_bands_is_refused(tmp_path: Path) -> None:
    index = indexed("fuzzy", tmp_path)
    stage = FuzzyDeduplicationStage(against=[index], word_ngrams=2, num_bands=20, minhashes_per_band=13)
    with pytest.raises(PlanError, match=r"num_bands is \d+ there and 20 here; minhashes_per_band is \d+ there and 13"):
        Pipeline("p", stages=[stage]).plan([DocumentBatch(OLD)])


def test_a_list_of_indexes_is_asked_for() -> None:
    with pytest.raises(TypeError, match="against must be a list"):
        ExactDeduplicationStage(against="index")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "bytes, but should have"),
        (lambda path: path.unlink(), "it does not exist"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b"a4", b"a5")), "have changed"),
        (lambda path: path.write_bytes(path.read_bytes()[:-3] + b"???"), "its end has changed"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-60] + b"?" * 33 + path.read_bytes()[-27:]),
            "its end has changed",
        ),
    ],
)
def test_a_damaged_file_is_told(tmp_path: Path, damage: Any, message: str) -> None:
    index = indexed("exact", tmp_path, num_partitions=1)
    assert DedupIndex(index).check() == []
    [path] = (tmp_path / "index" / "data").rglob("*.runs")
    damage(path)
    assert len(DedupIndex(index).check()) == 1
    new = write(tmp_path / "new", x=NEW)
    with pytest.raises(GristmillError, match=f"{path}, a file of an index, .*{message}.*Restore"):
        run(new, tmp_path / "out", ExactDeduplicationStage(id_field="id", against=[index]))


@pytest.mark.parametrize("content", [b"{", b'{"format": 5}', b"[]"])
def test_a_damaged_version_is_told(tmp_path: Path, content: bytes) -> None:
    index = indexed("exact", tmp_path)
    path = tmp_path / "index" / "versions" / "000001.json"
    path.write_bytes(content)
    with pytest.raises(PlanError, match=f"{path} cannot be read"):
        DedupIndex(index).info()


def test_an_index_with_other_hashes_is_refused(tmp_path: Path) -> None:
    index = indexed("exact", tmp_path)
    path = tmp_path / "index" / "versions" / "000001.json"
    path.write_bytes(path.read_bytes().replace(b'"format": 5', b'"format": 4'))
    new = write(tmp_path / "new", x=NEW)
    with pytest.raises(PlanError, match=f"{path} has format 4.*rebuild the index"):
        run(new, tmp_path / "out", ExactDeduplicationStage(id_field="id", against=[index]))
    assert not list((tmp_path / "out").glob("*.jsonl"))


# -- everywhere ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["exact", pytest.param("fuzzy", marks=pytest.mark.slow)])
def test_an_index_on_s3(tmp_path: Path, s3: dict[str, Any], stage: str) -> None:
    import s3fs

    s3fs.S3FileSystem(**s3).mkdir(f"index-{stage}")
    index = DedupIndex(f"s3://index-{stage}/a/b", s3, snapshot="old")
    make = STAGES[stage]
    run(write(tmp_path / "old", x=OLD), tmp_path / "old-out", make(id_field="id", extend=index, num_partitions=2))
    found = DedupIndex(index.path, s3)
    run(write(tmp_path / "new", x=NEW), tmp_path / "out", make(id_field="id", extend=found, num_partitions=3))
    assert ids(tmp_path / "out") == ONLY_NEW
    assert (found.versions, len(found), found.check()) == ([1, 2], 120, [])
    with pytest.raises(FileExistsError):
        found.publish(found.there())
    with pytest.raises(FileExistsError):  # also when nobody has seen it before
        found._create_remote(found._path(2), b"{}")
    assert found.prune() == [1]
    assert (found.versions, len(found), found.check()) == ([2], 120, [])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.lists(st.binary(min_size=8, max_size=8), min_size=1, max_size=40))
def test_ranges_that_overlap_are_those_that_share_a_key(of: int, parts: int, keys: list[bytes]) -> None:
    table = pa.table({"key": pa.array(keys, pa.binary(8))})
    pairs = zip(
        partition_numbers(table, ["key"], of).to_pylist(),
        partition_numbers(table, ["key"], parts).to_pylist(),
        strict=True,
    )
    assert all(theirs in overlapping_ranges(mine, of, parts) for mine, theirs in pairs)
    assert sum(len(overlapping_ranges(part, of, parts)) for part in range(of)) <= of + parts
