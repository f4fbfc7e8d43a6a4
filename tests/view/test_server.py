"""The page over HTTP: who gets an answer, which rows are found, and text that stays text."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from html.parser import HTMLParser
from urllib.parse import quote, urlencode
from urllib.request import urlopen

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.core.errors import InputError
from gristmill.report.whatif import whatif
from gristmill.text import JsonlReader, JsonlWriter
from gristmill.view.server import View
from tests.download.file_server import open_shelf
from tests.view.sample_run import EVIL, add_source, make_input, make_media, make_run, make_scored_run, png, stages, wav


class Page(HTMLParser):
    """What a browser would make of a page: elements with their attributes, and text."""

    def __init__(self, raw: str) -> None:
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(raw)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.text += "" if tag in ("mark", "del", "ins", "b", "span", "br") else "\n"

    def handle_data(self, data):
        self.text += data

    def links(self, start):
        return [found["href"] for tag, found in self.elements if tag == "a" and found.get("href", "").startswith(start)]


def ask(view, path, *, token=None, host=None, method="GET", headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", view.port, timeout=20)
    sent_headers = {"Host": host or f"127.0.0.1:{view.port}", **(headers or {})}
    connection.request(method, f"/{view.token if token is None else token}/{path}", headers=sent_headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def look(view, name="rows", **given):
    """A page, when all has been looked through that it is about."""
    while name == "rows" and not json.loads(ask(view, f"state?{urlencode(given)}")[1])["done"]:
        time.sleep(0.01)
    answer, body = ask(view, f"{name}?{urlencode(given)}")
    assert answer.status == 200, body.decode()
    return Page(body.decode())


def status(page):
    return re.search(r"(?:[\d,]+ to [\d,]+ of )?(?:at least )?[\d,]+ rows?\b", page.text)[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("view"))


@pytest.fixture(scope="module")
def view(run):
    with View(str(run)) as served:
        yield served


def test_only_who_has_the_key_gets_an_answer(view):
    for token in ("", "x", view.token[:-1], view.token + "x"):
        assert ask(view, "rows?in=kept", token=token)[0].status == 403
    assert ask(view, "rows?in=kept")[0].status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1.evil.example:1"])
def test_a_site_that_points_its_name_here_gets_nothing(view, host):
    answer, body = ask(view, "rows?in=kept", host=host)
    assert (answer.status, b"grain" in body) == (403, False)


def test_localhost_is_this_machine_too(view):
    assert ask(view, "", host=f"localhost:{view.port}")[0].status == 200


def test_nothing_is_loaded_from_elsewhere_and_nothing_can_be_changed(view):
    answer, _ = ask(view, "rows?in=dropped")
    policy = answer.getheader("Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert answer.getheader("Referrer-Policy") == "no-referrer"
    for method in ("POST", "PUT", "DELETE"):
        assert ask(view, "rows?in=kept", method=method)[0].status == 501
    for name in ("rows?in=dropped", "row?in=dropped&n=0", "report"):
        page = Page(ask(view, name)[1].decode())
        links = {found.get("src") or found.get("href") for _, found in page.elements} - {None}
        assert not [link for link in links if "//" in link]


@pytest.mark.parametrize(
    "path",
    ["rows?in=kept", "rows?in=dropped", "rows?in=quarantined", "rows?in=kept&search=%3Cscript", "row?in=kept&n=7"],
)
def test_text_from_data_stays_text(view, path):
    page = Page(ask(view, path)[1].decode())
    scripts = [found for tag, found in page.elements if tag == "script"]
    assert scripts == [{"src": "page.js", "defer": None}]
    assert not {tag for tag, _ in page.elements} & {"img", "u", "i", "iframe"}
    assert not [name for _, found in page.elements for name in found if name.startswith("on")]
    assert "small <b>mill</b>" in page.text


def test_markup_in_a_row_its_columns_and_an_address_is_shown(view):
    found = look(view, search="<script>", **{"in": "kept"})
    assert status(found) == "1 to 1 of 1 row"
    row = look(view, "row", n=0, search="<script>", **{"in": "kept"})
    assert EVIL in row.text
    assert "<b>odd</b>" in row.text
    answer, body = ask(view, "rows?in=" + quote("<script>x</script>"))
    assert answer.status == 404
    assert b"<script>x" not in body


def test_each_fate_has_its_rows_and_the_numbers_are_those_of_the_run(view):
    shown = {name: status(look(view, **{"in": name})) for name in ("kept", "dropped", "quarantined")}
    kept = int(shown["kept"].split()[-2])
    dropped = int(shown["dropped"].split()[-2])
    assert kept + dropped == 200
    assert shown["quarantined"] == "1 to 2 of 2 rows"
    page = look(view, **{"in": "kept"})
    assert f"Kept{kept} Dropped{dropped} Quarantined2" in " ".join(page.text.split())


def test_rows_are_found_by_stage_language_score_and_words(view):
    whole = look(view, **{"in": "dropped"})
    counts = dict(re.findall(r"(\w+) \((\d+)\)", whole.text))
    assert counts["ExactDeduplicationStage"] == "4"
    stage = look(view, stage="WordCountFilter", **{"in": "dropped"})
    assert status(stage).endswith(f"of {counts['WordCountFilter']} rows")
    both = look(view, stage="WordCountFilter", language="de", **{"in": "dropped"})
    assert dict(re.findall(r"(\w+) \((\d+)\)", both.text))["de"] in status(both)
    ranged = look(view, score="rejected_score", least=5, most=6, **{"in": "dropped"})
    assert set(re.findall(r"score (\d+)", ranged.text)) == {"5", "6"}
    assert status(look(view, search="STRASSE ÜBER".replace("SS", "ß"), **{"in": "kept"})) == "0 rows"
    assert status(look(view, search="straße über", **{"in": "dropped"})) == "1 to 2 of 2 rows"


def test_rows_come_in_order_and_page_by_page(view):
    names = []
    for page in (1, 2, 3):
        shown = look(view, sort="rejected_score", down=1, page=page, **{"in": "dropped"})
        names += [int(score) for score in re.findall(r"score (\d+)", shown.text)]
    assert names == sorted(names, reverse=True)
    first = look(view, **{"in": "kept"}).links("row?")
    second = look(view, page=2, **{"in": "kept"}).links("row?")
    assert len(first) == 50
    assert not set(first) & set(second)


def test_a_row_tells_why_it_was_dropped_and_where_it_came_from(view):
    page = look(view, "row", n=0, stage="WordCountFilter", **{"in": "dropped"})
    assert "Dropped by WordCountFilter: " in page.text
    assert " is below min_words=8." in page.text
    assert "part-0.jsonl" in page.text
    aside = look(view, "row", n=0, **{"in": "quarantined"})
    assert "broken <u>line</u>" in aside.text
    assert "not JSON" in aside.text


def test_duplicates_are_side_by_side_with_differences_marked(view):
    page = look(view, "row", n=0, search="mill by", **{"in": "dropped"})
    assert "a cluster of 4 rows" in page.text
    assert "The mill by the river" in page.text
    assert "THE MILL BY THE RIVER" in page.text
    marks = [tag for tag, _ in page.elements if tag in ("del", "ins")]
    assert marks.count("del") > 0 < marks.count("ins")


def test_every_row_of_a_list_leads_to_its_page(view):
    shown = look(view, search="grain", language="de", sort="words", **{"in": "kept"})
    for link in shown.links("row?")[:5]:
        answer, body = ask(view, link)
        assert answer.status == 200
        assert b"grain" in body


def test_sources_appear_while_the_run_goes_on(tmp_path):
    run = make_run(tmp_path)
    with View(str(run)) as view:
        view.routes.data._due = 0.0
        look(view, **{"in": "kept"})
        before = json.loads(ask(view, "state?in=kept")[1])
        add_source(run, tmp_path / "out", "late", 30)
        view.routes.data._due = 0.0
        look(view, **{"in": "kept"})
        after = json.loads(ask(view, "state?in=kept")[1])
    assert after["found"] == before["found"] + 30
    assert int(after["row_sets"]["kept"]) == int(before["row_sets"]["kept"]) + 30


def test_what_was_set_aside_without_a_run_directory_is_beside_the_output(tmp_path):
    make_input(tmp_path / "in", parts=1, rows=20)
    Pipeline("beside", stages=stages(tmp_path, least=1)).run(LocalExecutor(0), max_errors=None)
    with View(str(tmp_path / "out")) as view:
        kept, aside = look(view, **{"in": "kept"}), look(view, **{"in": "quarantined"})
    assert status(kept) == "1 to 19 of 19 rows"
    assert "broken <u>line</u>" in aside.text


def test_the_command_prints_an_address_and_ends_with_ctrl_c(run):
    command = [sys.executable, "-m", "gristmill.cli.main", "view", str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().strip()
        with urlopen(url) as answer:
            assert b"small &lt;b&gt;mill" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert url.startswith("http://127.0.0.1:")


def test_addresses_that_make_no_sense_are_answered(run):
    with View(str(run)) as view:
        assert ask(view, "rows?" + "&".join(f"a{n}=1" for n in range(99)))[0].status == 400
        connection = http.client.HTTPConnection("127.0.0.1", view.port, timeout=20)
        connection.request("GET", "http://[::1/", headers={"Host": f"127.0.0.1:{view.port}"})
        assert connection.getresponse().status == 400
        connection.close()


# -- what if -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[False, True], ids=["once", "doubles"])
def scored(tmp_path_factory, request):
    return make_scored_run(tmp_path_factory.mktemp("scored"), request.param)


def counted(text):
    """Rows kept, rows of which nothing is known, and those that come back or are lost, as a page tells."""
    found = (re.search(form, text) for form in (r"([\d,]+)rows kept", r"(\d+) are unknown"))
    return [int(one[1].replace(",", "")) if one else 0 for one in found]


@pytest.mark.parametrize("low", [1, 4, 8, 9, 12])
@pytest.mark.parametrize(("stage", "parameter"), [("WordCountFilter", "min_words"), ("MeanWordLengthFilter", "")])
def test_moving_a_limit_counts_what_the_command_whatif_counts(scored, stage, parameter, low):
    parameter, value = parameter or "min_mean_word_length", low if parameter else low / 2
    with View(str(scored)) as view:
        text = look(view, "counts", column=stage, low=value, high=100000 if stage == "WordCountFilter" else 10).text
    answer = whatif(str(scored), {f"{stage}.{parameter}": value}, 0)
    assert answer.before.rows > 10
    assert counted(text) == [answer.after.rows, answer.unknown.rows]
    assert f"in the run {answer.before.rows}" in text or answer.before.rows == answer.after.rows
    assert int(re.search(r"(\d+)dropped by this filter", text)[1]) == answer.stages[stage][1]


def test_a_page_says_what_limits_there_are_and_where_they_were(scored):
    with View(str(scored)) as view:
        page = look(view, "whatif", column="WordCountFilter")
        same = look(view, "counts", column="WordCountFilter", low=8, high=100000).text
        row = look(view, "row", n=0, stage="WordCountFilter", **{"in": "dropped"})
    assert "No row would change" in same
    assert [found["type"] for tag, found in page.elements if tag == "input"].count("range") == 2
    assert "min_words=8" in row.text
    assert "ExactDeduplicationStage" not in page.text  # what is like another has no limit of its own to move


def test_scores_that_are_too_many_are_counted_in_part_and_that_is_said(scored, monkeypatch):
    with View(str(scored)) as view:
        assert "Counts cover only" not in look(view, "whatif").text
    monkeypatch.setattr("gristmill.view.data.whatif.MOST_SCORES", 100)
    with View(str(scored)) as view:
        assert "Counts cover only the first 100 rows" in look(view, "whatif").text


# -- datasets ------------------------------------------------------------------------------------------------------


def test_any_dataset_can_be_looked_at(tmp_path):
    rows = [{"n": number, "text": f"row {number}"} for number in range(1000)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    places = {name: tmp_path / name for name in ("lines.jsonl", "lines.jsonl.gz", "table.parquet", "table.csv", "all")}
    places["lines.jsonl"].write_text("\ufeff" + lines)
    places["lines.jsonl.gz"].write_bytes(gzip.compress(lines.encode()))
    pq.write_table(pa.Table.from_pylist(rows), places["table.parquet"], row_group_size=77)
    places["table.csv"].write_text("n,text\n" + "".join(f"{row['n']},{row['text']}\n" for row in rows))
    places["all"].mkdir()
    pq.write_table(pa.Table.from_pylist(rows[:600]), places["all"] / "a.parquet")
    (places["all"] / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[600:]))
    for place in places.values():
        with View(str(place)) as view:
            page = look(view, page=13, **{"in": "rows"})
            assert status(page) == "601 to 650 of 1,000 rows", place
            assert "row 600" in page.text
            assert status(look(view, search="row 77", **{"in": "rows"})) == "1 to 11 of 11 rows", place
            assert "row 649" in Page(ask(view, page.links("row?")[-1])[1].decode()).text


def test_a_run_and_a_dataset_may_lie_anywhere(tmp_path):
    import fsspec

    run = make_run(tmp_path)
    memory = fsspec.filesystem("memory")
    memory.put(str(run), "/there/run", recursive=True)
    memory.pipe_file("/there/rows.jsonl", b'{"text": "far"}\n{"text": "away"}\n')
    with View("memory://there/run") as view:
        assert "files are not shown: they are in other places than this run" in look(view, **{"in": "kept"}).text
    with View("memory://there/run", follow_paths=True) as view:
        assert "Dropped by WordCountFilter" in look(view, "row", n=0, **{"in": "dropped"}).text
    with View("memory://there/rows.jsonl") as view:
        assert status(look(view, search="AWAY", **{"in": "rows"})) == "1 to 1 of 1 row"


def test_a_place_without_data_is_refused_with_the_way_out(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    for place, words in ((tmp_path / "nothing", "does not exist"), (tmp_path / "notes.txt", "cannot be shown")):
        with pytest.raises(InputError, match=words):
            View(str(place))
    with pytest.raises(InputError, match="has no file"):
        View(str(tmp_path))


def test_a_damaged_file_hides_no_other(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "b.jsonl").write_text('{"text": "good"}\nbad\n')
    with View(str(tmp_path)) as view:
        page = look(view, **{"in": "rows"})
    assert "good" in page.text
    assert "could not be read" in page.text


def test_pictures_and_sound_are_served_as_what_they_are_and_nothing_else_is(tmp_path):
    with View(str(make_media(tmp_path / "media"))) as view:
        page = look(view, **{"in": "rows"})
        images = [found["src"] for tag, found in page.elements if tag == "img"]
        sounds = [found["src"] for tag, found in page.elements if tag == "audio"]
        assert (len(images), len(sounds)) == (2, 1)
        assert all(found.get("alt") for tag, found in page.elements if tag == "img")
        answer, body = ask(view, images[0])
        assert (answer.getheader("Content-Type"), body) == ("image/png", png())
        answer, body = ask(view, sounds[0], headers={"Range": "bytes=4-9"})
        assert (answer.status, answer.getheader("Content-Type"), body) == (206, "audio/wav", wav()[4:10])
        for number in (1, 2):
            link = page.links("row?")[number].replace("row?", "media?")
            for column in ("image", "audio", "picture", "id"):
                assert ask(view, f"{link}&column={column}")[0].status == 404


def pictures(folder, names, **options):
    """How many of the files that rows name are shown."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"picture": names}), folder / "rows.parquet")
    with View(str(folder), **options) as view:
        page = look(view, **{"in": "rows"})
        sources = [found["src"] for tag, found in page.elements if tag == "img"]
        assert all(ask(view, source)[1] == png() for source in sources)
    return len(sources)


def test_rows_show_no_file_outside_of_the_dataset(tmp_path):
    data, outside = tmp_path / "data", tmp_path / "outside"
    outside.mkdir()
    (data / "inner").mkdir(parents=True)
    for path in (outside / "a.png", data / "inner" / "a.png", tmp_path / "data.png"):
        path.write_bytes(png())
    (data / "link.png").symlink_to(outside / "a.png")
    (data / "folder").symlink_to(outside)
    (data / "within.png").symlink_to(data / "inner" / "a.png")
    os.mkfifo(data / "pipe.png")
    inside = ["inner/a.png", str(data / "inner" / "a.png"), "within.png", "../data/inner/a.png"]
    elsewhere = [str(outside / "a.png"), "../outside/a.png", "link.png", "folder/a.png", "../data.png"]
    never = [f"file://{outside}/a.png", "pipe.png", "inner/a.png\0", "simplecache::inner/a.png", "inner"]
    assert pictures(data, inside) == 4
    assert pictures(data, [*elsewhere, *never]) == 0
    assert pictures(data, [*inside, *elsewhere, *never], follow_paths=True) == 9


def test_the_records_of_a_run_of_somebody_else_open_no_file_elsewhere(tmp_path):
    """A run directory that names private files and addresses: nothing is read, nothing is called."""
    calls = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: calls.append(server.accept()), daemon=True).start()
        private = tmp_path / "home" / "private.jsonl"
        private.parent.mkdir()
        private.write_text('{"text": "private"}\n')
        mine = make_run(tmp_path / "theirs")
        run = tmp_path / "downloads" / "run"
        shutil.copytree(mine, run)
        (run.parent / "link.jsonl").symlink_to(private)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/a.jsonl"
        plan = json.loads((run / "plan.json").read_text())
        plan |= {"scores": {"place": address}, "rejects": {"place": address}, "beside": [f"{private.parent}.run"]}
        (run / "plan.json").write_text(json.dumps(plan))
        for ledger in run.glob("ledger/*.jsonl"):
            lines = [json.loads(line) for line in ledger.read_text().splitlines()]
            named = [str(private), address, f"{run}/../../home/private.jsonl", f"{run.parent}/link.jsonl"]
            for line in lines:
                line["files"] = named
                for fate in ("written", "rejected"):
                    line[fate] = [{"path": path, "size": 20, "checksum": ""} for path in named]
            ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
        with View(str(run)) as view:
            for fate in ("kept", "dropped"):
                page = look(view, **{"in": fate})
                assert "4 files are not shown" in page.text
                assert "private" not in page.text.replace("private.jsonl", "")
            ask(view, "whatif")
        assert not calls


def test_output_elsewhere_that_says_it_is_of_the_run_is_shown(tmp_path):
    reader = JsonlReader(str(make_input(tmp_path / "in")))
    stages = [reader, JsonlWriter(str(tmp_path / "data" / "out"))]
    Pipeline("p", stages=stages).run(LocalExecutor(num_workers=0), str(tmp_path / "runs" / "1"))
    with View(str(tmp_path / "runs" / "1")) as view:
        assert status(look(view, **{"in": "kept"})).endswith("of 200 rows")


def test_rows_of_a_part_of_a_dataset_may_name_files_of_the_whole(tmp_path):
    (tmp_path / "data" / "images").mkdir(parents=True)
    (tmp_path / "data" / "images" / "a.png").write_bytes(png())
    (tmp_path / "data" / "part").mkdir()
    pq.write_table(pa.table({"picture": ["../images/a.png"]}), tmp_path / "data" / "part" / "rows.parquet")
    for place, shown in ((tmp_path / "data", 1), (tmp_path / "data" / "part", 0)):
        with View(str(place)) as view:
            assert len([tag for tag, _ in look(view, **{"in": "rows"}).elements if tag == "img"]) == shown


def test_rows_of_an_object_store_show_no_object_outside_of_the_dataset():
    store = fsspec.filesystem("memory")
    for path in ("/view/data/a.png", "/view/data/b/a.png", "/view/other/a.png"):
        store.pipe(path, png())
    names = ["a.png", "b/a.png", "memory:///view/data/a.png"]
    names += ["../other/a.png", "memory://view/other/a.png", "memory://view/data/../other/a.png", "/view/other/a.png"]
    with store.open("/view/data/rows.parquet", "wb") as file:
        pq.write_table(pa.table({"picture": names}), file)
    with View("memory://view/data") as view:
        page = look(view, **{"in": "rows"})
        assert len([tag for tag, _ in page.elements if tag == "img"]) == 3


def test_nothing_is_fetched_for_a_row_of_a_dataset_on_the_web(tmp_path):
    with open_shelf() as shelf:
        shelf.files["/data/a.png"] = shelf.files["/secret/a.png"] = png()
        names = ["a.png", "../secret/a.png", f"{shelf.url}/secret/a.png", f"{shelf.url}/data/a.png", "/secret/a.png"]
        pq.write_table(pa.table({"picture": names}), tmp_path / "rows.parquet")
        shelf.files["/data/rows.parquet"] = (tmp_path / "rows.parquet").read_bytes()
        with View(f"{shelf.url}/data/rows.parquet") as view:
            page = look(view, **{"in": "rows"})
            assert not [tag for tag, _ in page.elements if tag == "img"]
        assert {path for path in shelf.asked if path.endswith(".png")} == set()
        with View(f"{shelf.url}/data/rows.parquet", follow_paths=True) as view:
            page = look(view, **{"in": "rows"})
            assert len([tag for tag, _ in page.elements if tag == "img"]) >= 2


def test_it_listens_on_this_machine_only(view):
    assert view._server.server_address[0] == "127.0.0.1"


def test_a_huge_row_is_shown_in_a_page_of_bounded_size(tmp_path):
    rows = [{"text": "word " * 4_000_000, **{f"c{n}": "x" * 1000 for n in range(2000)}}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with View(str(tmp_path)) as view:
        for page in ("rows?in=rows", "row?in=rows&n=0"):
            assert len(ask(view, page)[1]) < 8 * 2**20
