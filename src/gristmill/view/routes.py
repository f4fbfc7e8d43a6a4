"""The HTTP routes of `gristmill view`: what each address answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import orjson
import pyarrow as pa

from gristmill.core.errors import GristmillError
from gristmill.core.records.rejected_rows import FILE, PART, PLACE
from gristmill.interleaved.placeholders import ITEMS_COLUMN
from gristmill.view.data.film_rows import clip_span, clips_of_film, poster
from gristmill.view.data.media_in_rows import FilesNamedByRows, MediaContent, media_in_cell, media_of_items
from gristmill.view.data.query import ColumnRoles, RowQuery
from gristmill.view.data.row_access import RowAccess, concat_differing
from gristmill.view.data.row_scan import RowScan, ScanCache
from gristmill.view.data.row_sets import RowSet, RunOrDataset
from gristmill.view.data.sound_marks import own_segment, sound_marks
from gristmill.view.data.whatif import JudgedRows, ScoreLimits, ScoreReader
from gristmill.view.pages import find_duplicates
from gristmill.view.pages.cell_values import python_rows
from gristmill.view.pages.film_timeline import film_timeline
from gristmill.view.pages.html_elements import SafeHtml, element, printable
from gristmill.view.pages.page_frame import TITLES, page_frame
from gristmill.view.pages.row_list_page import ID_COLUMNS, ROWS_PER_PAGE, ListedRow, list_page, progress_text
from gristmill.view.pages.row_page import row_page
from gristmill.view.pages.sound_picture import sound_picture
from gristmill.view.pages.whatif_page import whatif_counts, whatif_page

HTML, TEXT, JSON = "text/html; charset=utf-8", "text/plain; charset=utf-8", "application/json"
WAIT_SECONDS = 0.6
"""How long a page waits for all of its rows before it is shown with those found so far."""

SOUND_COLUMNS, MAX_SOUND_SECONDS = 900, 3600.0
"""How finely a waveform is drawn, and of how much sound."""

MORE_SECONDS = 0.1
"""How much longer it waits for the counts of all rows, which is enough for a small dataset."""

MAX_SECONDS = 1e6

UrlParameters = Mapping[str, str]


class PageNotFound(Exception):
    """The address, or the row it names, does not exist."""


@dataclass(frozen=True)
class HttpReply:
    """What is sent back."""

    body: bytes
    kind: str = HTML
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    medium: MediaContent | None = None
    """What is sent in place of the body, some of it at a time."""


class PageRoutes:
    """Answers for one run or dataset. `text_field` is the column with the text, if it cannot be guessed; with
    `follow_paths`, files that rows name are shown wherever they are."""

    def __init__(self, library: RunOrDataset, text_field: str | None = None, follow_paths: bool = False) -> None:
        self.data, self.text_field = library, text_field
        self.files = FilesNamedByRows(follow_paths, library.storage_options)
        self.scans, self.scores = ScanCache(), ScoreReader(library)
        self._columns: dict[tuple[str, ...], ColumnRoles] = {}
        self._answers: dict[str, Callable[[UrlParameters], HttpReply]] = {
            "": self._start,
            "rows": self._rows,
            "row": self._row,
            "state": self._state,
            "media": self._media,
            "waveform": self._waveform,
            "poster": self._poster,
            "text": self._text,
            "whatif": self._whatif,
            "counts": self._whatif_counts,
            "report": self._report,
            "icon.svg": lambda _: _resource("icon.svg", "image/svg+xml"),
            "page.css": lambda _: _resource("page.css", "text/css; charset=utf-8"),
            "page.js": lambda _: _resource("page.js", "text/javascript; charset=utf-8"),
        }

    def answer(self, name: str, given: UrlParameters) -> HttpReply:
        found = self._answers.get(name)
        if found is None:
            raise PageNotFound(f"There is no page {name!r}.")
        return found(given)

    def failure(self, status: int, message: str) -> HttpReply:
        title = "Page not found" if status == 404 else "This page cannot be shown"
        body = element(
            "div",
            element("h2", title),
            element("p", message),
            element("p", element("a", "All rows", href="./")),
        )
        return self._page(title, body, "", status)

    def _page(self, title: str, body: SafeHtml, current: str, status: int = 200) -> HttpReply:
        more = {"whatif": "What if"} if self.scores.filters() else {}
        if self.data.records_store and self.data.records_store.get("report.html") is not None:
            more["report"] = "Report"
        return HttpReply(page_frame(self.data, title, body, current, more).encode(), status=status)

    # -- rows --------------------------------------------------------------------------------------------------

    def _start(self, given: UrlParameters) -> HttpReply:
        return self._rows({"in": next(iter(self.data.row_sets())), **given})

    def _requested_rows(self, given: UrlParameters) -> tuple[RowSet, RowQuery, ColumnRoles, RowScan]:
        query = RowQuery.of(given)
        row_set = self.data.row_sets().get(query.row_set)
        if row_set is None:
            raise PageNotFound(f"Unknown tab {query.row_set!r}: choose one of the tabs above.")
        columns = self._columns_of(row_set)
        return row_set, query, columns, self.scans.get(row_set.sources, query, columns)

    def _columns_of(self, row_set: RowSet) -> ColumnRoles:
        """Guessed from the first rows of some sources, and guessed again when those are others."""
        chosen = (
            [*row_set.sources[:3], *row_set.sources[3:][-1:]] if len(row_set.sources) < 8 else [*row_set.sources[:3]]
        )
        key = (row_set.name, *(f"{source.id}{source.size}" for source in chosen))
        if key not in self._columns:
            sample = concat_differing([_first_rows(source) for source in chosen])
            self._columns[key] = ColumnRoles.of(sample.schema, sample, row_set.stage_field, self.text_field)
        return self._columns[key]

    def _rows(self, given: UrlParameters) -> HttpReply:
        row_set, query, columns, scan = self._requested_rows(given)
        page = max(_integer_or(given.get("page"), 1), 1)
        scan.wait(page * ROWS_PER_PAGE, WAIT_SECONDS)
        scan.wait(sys.maxsize, MORE_SECONDS)
        body = list_page(
            row_set, query, columns, scan, self._found(scan, (page - 1) * ROWS_PER_PAGE, ROWS_PER_PAGE), page
        )
        return self._page(TITLES[row_set.name], body, row_set.name)

    def _found(self, scan: RowScan, first: int, count: int) -> list[ListedRow]:
        rows: list[ListedRow] = []
        for source, table in scan.page(first, count):
            rows += [
                self._listed_row(first + len(rows) + number, source, row)
                for number, row in enumerate(python_rows(table))
            ]
        return rows

    def _listed_row(self, number: int, source: RowAccess, values: Mapping[str, Any]) -> ListedRow:
        beside, dataset = self.data.folders_of(source)
        found: dict[str, MediaContent] = {}
        for name, value in values.items():
            medium = media_in_cell(value, lambda named: self.files.find(named, beside, dataset))
            if medium is not None:
                found[name] = medium

        def part(path: str, offset: int, size: int | None) -> MediaContent | None:
            return self.files.find(path, beside, dataset, offset, size)

        return ListedRow(number, source.id, values, found, media_of_items(values.get(ITEMS_COLUMN), part))

    def _state(self, given: UrlParameters) -> HttpReply:
        """How far a scan is, for the page that shows it."""
        _, _, columns, scan = self._requested_rows(given)
        page, size = max(_integer_or(given.get("page"), 1), 1), _integer_or(given.get("size"), 0)
        scan.wait(page * ROWS_PER_PAGE, 0.0)
        state = {
            "status": progress_text(scan, page, size),
            "found": scan.found,
            "done": scan.done,
            "rows": 0
            if scan.query.sort and not scan.done
            else max(min(scan.found - (page - 1) * ROWS_PER_PAGE, ROWS_PER_PAGE), 0),
            "row_sets": {
                name: f"{row_set.rows:,}" for name, row_set in self.data.row_sets().items() if row_set.rows is not None
            },
            "stage": [pair for pair in scan.count_by(0) if pair[0]] if columns.stage else None,
            "language": [pair for pair in scan.count_by(1) if pair[0]] if columns.language else None,
            "rule": [pair for pair in scan.count_by(2) if pair[0]] if columns.rule else None,
        }
        return HttpReply(orjson.dumps(state, default=printable), JSON)

    # -- one row -----------------------------------------------------------------------------------------------

    def _requested_row(self, given: UrlParameters) -> tuple[ListedRow, RowQuery, ColumnRoles]:
        """By its place, or by its number among those found."""
        row_set, query, columns, scan = self._requested_rows(given)
        number = max(_integer_or(given.get("n"), 0), 0)
        source = row_set.source(given.get("file", ""))
        if source is not None:
            rows = python_rows(source.rows_at([_integer_or(given.get("at"), 0)]))
            found = [self._listed_row(number, source, row) for row in rows]
        else:
            scan.wait(number + 1, 5.0)
            found = self._found(scan, number, 1)
        if not found:
            raise PageNotFound("Row not found: you have reached the end, or the data has changed.")
        return found[0], query, columns

    def _row(self, given: UrlParameters) -> HttpReply:
        row, query, columns = self._requested_row(given)
        lower = {name.lower(): name for name in row.values}
        ids = [lower[name] for name in ID_COLUMNS if name in lower]
        values = row.values
        cluster = find_duplicates.cluster_of(self.data, values, ids)
        filters = self.scores.filters()
        scores = self.scores.scores_of_row(_row_key(values)) if filters and _row_key(values) else {}
        line = film_timeline(clips_of_film(self.data, values), clip_span(values))
        body = row_page(row, query, columns, row.number // ROWS_PER_PAGE + 1, filters, scores, cluster, line)
        return self._page("Row", body, query.row_set)

    def _media(self, given: UrlParameters) -> HttpReply:
        medium = self._requested_medium(given)
        medium.length(self.data.storage_options)  # raises here, where there is a page for it
        return HttpReply(b"", medium.kind, medium=medium)

    def _requested_medium(self, given: UrlParameters) -> MediaContent:
        row, _, _ = self._requested_row(given)
        medium = row.media.get(given.get("column", "")) or row.items.get(given.get("column", ""))
        if medium is None:
            raise PageNotFound("That column holds no image, audio or video.")
        return medium

    def _poster(self, given: UrlParameters) -> HttpReply:
        """A picture of a film at a time."""
        medium = self._requested_medium(given)
        seconds = min(max(_integer_or(given.get("ms"), 0), 0) / 1000, MAX_SECONDS)
        picture = poster(medium, seconds, self.data.storage_options) if medium.family == "video" else None
        if picture is None:
            raise PageNotFound("There is no picture of that.")
        return HttpReply(picture, "image/jpeg")

    def _waveform(self, given: UrlParameters) -> HttpReply:
        """A recording as a picture. Its bytes are those of `media`, so it shows nothing else."""
        row, _, _ = self._requested_row(given)
        medium = row.media.get(given.get("column", ""))
        if medium is None or medium.family != "audio":
            raise PageNotFound("That column holds no audio.")
        from gristmill.audio.batch import BadAudio
        from gristmill.audio.decode import open_sound
        from gristmill.audio.sound.sound_preview import waveform

        try:
            with open_sound(medium.read(self.data.storage_options)) as sound:
                shape = waveform(sound.windows(), sound.header.rate, SOUND_COLUMNS, MAX_SOUND_SECONDS)
        except BadAudio as error:
            raise PageNotFound(f"That recording cannot be decoded: {error}") from error
        picture = sound_picture(shape, own_segment(row.values), sound_marks(row.values))
        return HttpReply(picture.encode(), "image/svg+xml")

    def _text(self, given: UrlParameters) -> HttpReply:
        row, _, columns = self._requested_row(given)
        text = row.values.get(columns.text) if columns.text else None
        return HttpReply(str(text or "").encode("utf-8", "backslashreplace"), TEXT)

    # -- what if, and the report ---------------------------------------------------------------------------------

    def _judged(self, given: UrlParameters) -> tuple[JudgedRows | None, ScoreLimits]:
        filters = self.scores.filters()
        columns = [given["column"]] if given.get("column") else [one.column for one in filters]
        judged = next(filter(None, map(self.scores.judged, columns)), None)
        if judged is None:
            return None, ScoreLimits()
        if "low" not in given and "high" not in given:
            return judged, judged.limits_in_run
        asked = RowQuery.of({"least": given.get("low", ""), "most": given.get("high", "")})
        return judged, ScoreLimits(asked.least, asked.most)

    def _whatif(self, given: UrlParameters) -> HttpReply:
        judged, limits = self._judged(given)
        return self._page("What if", whatif_page(self.scores.filters(), judged, limits), "whatif")

    def _whatif_counts(self, given: UrlParameters) -> HttpReply:
        judged, limits = self._judged(given)
        if judged is None:
            raise PageNotFound("There are no scores of that name.")
        return HttpReply(whatif_counts(judged, judged.ask(limits.low, limits.high), limits).encode())

    def _report(self, _: UrlParameters) -> HttpReply:
        content = self.data.records_store.get("report.html") if self.data.records_store else None
        if content is None:
            raise PageNotFound("There is no report yet: it is written when the run ends.")
        # The report has its style in itself, and no script.
        policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; frame-ancestors 'none'"
        return HttpReply(content, headers={"Content-Security-Policy": policy})


def _first_rows(source: RowAccess) -> pa.Table:
    try:
        return source.head(500)
    except (OSError, pa.ArrowException, GristmillError):  # said where its rows would be
        return concat_differing([])


def _row_key(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a row is known by among the scores."""
    if values.get(FILE) is not None and values.get(PLACE) is not None:
        place = {"file": str(values[FILE]), "position": int(values[PLACE])}
        return place if values.get(PART) is None else place | {"part": str(values[PART])}
    return {"id": str(values["id"])} if values.get("id") is not None else {}


def _integer_or(text: str | None, otherwise: int) -> int:
    try:
        return int(text or "")
    except ValueError:
        return otherwise


def _resource(name: str, kind: str) -> HttpReply:
    return HttpReply(files("gristmill.view").joinpath(name).read_bytes(), kind)
