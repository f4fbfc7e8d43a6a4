"""What is seen of a run: rates, the time left, the bottleneck, and stages that are made of parts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gristmill import CountRows, DocumentBatch, Pipeline, ProcessingStage, Resources
from gristmill.core.executor import PoolProgress, Progress
from gristmill.core.records.stage_stats import StageStats
from gristmill.observe.live_progress import render_panel
from gristmill.observe.run_snapshot import ProgressTracker, RunSnapshot
from gristmill.text import JsonlReader, JsonlWriter


class Decode(ProcessingStage[DocumentBatch, DocumentBatch]):
    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task


class Embed(Decode):
    resources = Resources(gpus=1)


class Score(Decode):
    pass


def three_pools() -> Any:
    """Decode; Embed, which has workers of its own; Score."""
    return Pipeline("pools", stages=[Decode(), Embed(), Score()]).plan([DocumentBatch(data=[{"text": "x"}])])


def moment(seconds: float, rows: int = 0, spent: tuple[float, ...] = (0, 0, 0), **changes: Any) -> Progress:
    pools = changes.pop("pools", [(2, 1), (4, 4), (1, 0)])
    queued = changes.pop("queued", (0, 3, 0))
    return Progress(
        stages=[
            (name, StageStats(rows_in=rows, rows_out=rows, seconds=taken))
            for name, taken in zip(("Decode", "Embed", "Score"), spent, strict=True)
        ],
        pools=[
            PoolProgress(name, *pool, waits, 100 * waits)
            for name, pool, waits in zip(("Decode", "Embed", "Score"), pools, queued, strict=True)
        ],
        seconds=seconds,
        **changes,
    )


def look(*moments: Progress, plan: Any = None) -> RunSnapshot:
    watch = ProgressTracker(plan or three_pools())
    for one in moments:
        watch.update(one)
    return watch.snapshot()


# -- rates and time --------------------------------------------------------------------------------------


def test_rates_are_those_of_the_last_seconds() -> None:
    slow_then_fast = [moment(second, rows=second * 10) for second in range(100)]
    slow_then_fast += [moment(100 + second, rows=1000 + second * 500) for second in range(12)]
    seen = look(*slow_then_fast)
    assert [line.rate for line in seen.stages] == [500, 500, 500]
    assert seen.rate == 500


def test_a_run_that_stands_still_has_no_rate() -> None:
    assert look(*(moment(second, rows=50) for second in range(20))).rate == 0


def reader_plan(tmp_path: Path, *names: str, **options: Any) -> Any:
    for name in names:
        (tmp_path / name).write_text('{"text": "12345"}\n' * 10)
    return Pipeline("read", stages=[JsonlReader(str(tmp_path), **options), Decode()]).plan()


def reading(seconds: float, read: int = 0, done: int = 0, seen: int = 1, listed: bool = False) -> Progress:
    stages = [("list_files", StageStats()), ("read_jsonl", StageStats(counts={"bytes_read": read}))]
    return Progress(
        stages=[*stages, ("Decode", StageStats())],
        sources_done=done,
        sources_seen=seen,
        listing_done=listed,
        seconds=seconds,
    )


def test_the_time_left_of_one_large_file_is_known_by_its_bytes(tmp_path: Path) -> None:
    plan = reader_plan(tmp_path, "a.jsonl")
    assert look(reading(30, read=45), plan=plan).seconds_left == pytest.approx(90)


def test_the_time_left_is_known_before_all_sources_are_listed(tmp_path: Path) -> None:
    plan = reader_plan(tmp_path, *(f"{number}.jsonl" for number in range(10)), files_per_partition=2)
    assert look(reading(10, done=1, seen=3), plan=plan).seconds_left == pytest.approx(40)
    assert look(reading(10), plan=plan).seconds_left is None


# -- the bottleneck ----------------------------------------------------------------------------------------


def test_the_bottleneck_is_the_pool_that_was_busy_while_others_waited() -> None:
    seen = look(*(moment(second, spent=(second, 4 * second, 0)) for second in range(1, 12)))
    assert str(seen.bottleneck) == "bottleneck: Embed (4 workers, 100% busy); Score is 100% idle"


def test_the_bottleneck_is_that_of_the_last_seconds() -> None:
    early = [moment(second) for second in range(60)]
    late = [moment(60 + second, pools=[(2, 2), (4, 1), (1, 1)], queued=(5, 0, 0)) for second in range(12)]
    seen = look(*early, *late)
    assert seen.bottleneck is not None
    assert (seen.bottleneck.name, seen.bottleneck.share) == ("Decode", 1.0)
    assert seen.bottleneck.idlest_pool == ("Embed", 0.75)


def test_of_two_busy_pools_the_one_behind_a_queue_holds_up_the_other() -> None:
    both = [moment(second, pools=[(2, 2), (4, 4), (1, 0)], queued=(0, 9, 0)) for second in range(5)]
    assert str(look(*both).bottleneck).startswith("bottleneck: Embed")


def test_workers_that_wait_are_no_bottleneck() -> None:
    idle = [moment(second, pools=[(2, 0), (4, second % 4 == 0), (1, 0)]) for second in range(1, 9)]
    assert str(look(*idle).bottleneck) == "no bottleneck; busiest stage: Embed (4 workers, 6% busy)"
    assert look(moment(1, pools=[(2, 0), (4, 0), (1, 0)])).bottleneck is None


def test_where_no_workers_are_known_it_is_the_stage_that_takes_most_of_the_time() -> None:
    times = [moment(second, spent=(100.0, second * 0.9, second * 0.1), pools=[(0, 0)] * 3) for second in range(1, 5)]
    assert str(look(*times).bottleneck) == "slowest stage: Embed, 90% of the time"


def test_of_stages_that_share_workers_the_slow_one_is_named() -> None:
    plan = Pipeline("fused", stages=[Decode(), Score()]).plan([DocumentBatch(data=[{"text": "x"}])])

    def fused(second: float, score: float) -> Progress:
        stages = [("Decode", StageStats(seconds=second * 0.2)), ("Score", StageStats(seconds=score))]
        return Progress(stages=stages, pools=[PoolProgress("Decode + Score", 1, 1)], seconds=second)

    assert str(look(*(fused(s, s * 0.8) for s in range(1, 5)), plan=plan).bottleneck).startswith("bottleneck: Score (")
    assert str(look(*(fused(s, s * 0.2) for s in range(1, 5)), plan=plan).bottleneck).startswith(
        "bottleneck: Decode + Score ("
    )


# -- stages that are made of parts -------------------------------------------------------------------------


def counting(tmp_path: Path) -> tuple[Any, list[str]]:
    """A pipeline with an exchange, and all stages of it, those that `CountRows` is made of included."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "x"}\n')
    stages = [JsonlReader(str(tmp_path / "in")), CountRows("text"), JsonlWriter(str(tmp_path / "out"))]
    plan = Pipeline("parts", stages=stages).plan()
    return plan, [stage.name for stage in plan.all_stages]


def test_the_parts_of_a_stage_are_one_line(tmp_path: Path) -> None:
    plan, names = counting(tmp_path)
    stats = [StageStats(rows_in=100, rows_out=100, seconds=1.0) for _ in names]
    stats[0], stats[1] = StageStats(), StageStats(rows_out=100)
    stats[names.index("CountRows")] = StageStats(rows_in=100, rows_out=30, seconds=1.0, quarantined=2)
    seen = look(Progress(stages=list(zip(names, stats, strict=True)), seconds=10.0), plan=plan)
    assert [line.name for line in seen.stages] == [
        "list_files", "read_jsonl", "CountRows", "write_jsonl", "commit_jsonl"
    ]  # fmt: skip
    whole = seen.stages[2]
    assert (whole.rows_in, whole.kept, whole.dropped, whole.quarantined) == (100, 30, 68, 2)
    assert whole.seconds == sum(name.startswith("CountRows") for name in names)


def test_what_a_stage_keeps_is_not_known_before_its_last_part_runs(tmp_path: Path) -> None:
    plan, names = counting(tmp_path)
    first = len(plan.segments[0].stages)
    stats = [StageStats(rows_in=100, rows_out=100) for _ in names[:first]]
    seen = look(Progress(stages=list(zip(names[:first], stats, strict=True)), seconds=10.0), plan=plan)
    whole = seen.stages[-1]
    assert (whole.name, whole.rows_in, whole.kept, whole.dropped) == ("CountRows", 100, 0, 0)
    assert (seen.segment, seen.segments, seen.rows_out) == (0, 2, 0)


def test_the_time_left_is_that_of_the_part_that_runs_now(tmp_path: Path) -> None:
    plan, names = counting(tmp_path)
    first = len(plan.segments[0].stages)

    def at(seconds: float, stages: int, done: int, seen: int) -> Progress:
        stage_stats = [(name, StageStats()) for name in names[:stages]]
        return Progress(stages=stage_stats, sources_done=done, sources_seen=seen, listing_done=True, seconds=seconds)

    early = [at(50, first, 9, 10), at(100, len(names), 10, 14)]
    assert look(*early, plan=plan).seconds_left is None
    assert look(*early, at(110, len(names), 11, 14), plan=plan).seconds_left == pytest.approx(30)


# -- small screens -------------------------------------------------------------------------------------------


def plain(drawn: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", drawn)


def test_stages_that_share_workers_are_one_line_where_there_is_no_room_for_each() -> None:
    stages = [Decode().with_(name=f"filter {number}") for number in range(30)]
    plan = Pipeline("long", stages=stages).plan([DocumentBatch(data=[{"text": "x"}])])
    stage_stats = [(f"filter {n}", StageStats(rows_in=100 - n, rows_out=99 - n)) for n in range(30)]
    seen = look(Progress(stages=stage_stats, pools=[PoolProgress("x", 2, 1)], seconds=1.0), plan=plan)
    lines = [plain(line) for line in render_panel(seen, ["total"], 100, most=10)]
    assert len(lines) == 3
    assert lines[1].split() == ["filter", "0", "and", "29", "more", "100", "70", "30", "100", "1/2", "0"]


def test_what_has_no_room_at_all_is_counted() -> None:
    stages = [Embed().with_(name=f"pool {number}") for number in range(20)]
    plan = Pipeline("long", stages=stages).plan([DocumentBatch(data=[{"text": "x"}])])
    stage_stats = [(f"pool {n}", StageStats(rows_in=9, rows_out=9)) for n in range(20)]
    seen = look(Progress(stages=stage_stats, seconds=1.0), plan=plan)
    lines = [plain(line) for line in render_panel(seen, ["total"], 80, most=8)]
    assert len(lines) == 8
    assert lines[1].split() == ["…", "15", "earlier", "groups"]
    assert [line.split()[1] for line in lines[2:7]] == ["15", "16", "17", "18", "19"]
