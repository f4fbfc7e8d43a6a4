"""report.html: one self-contained HTML file without scripts.

Whatever comes from data is escaped: a document that holds markup is shown as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from gristmill.core.result import count_noun, count_texts
from gristmill.dedup.clusters.cluster_table import SIMILARITY
from gristmill.report.drop_sentence import similarity_sentence
from gristmill.report.run_report import charts

Facts = Mapping[str, Any]


def report_page(facts: Facts) -> str:
    """The whole file."""
    style = files("gristmill.report").joinpath("page.css").read_text("utf-8")
    sections = (
        _header,
        _funnel,
        _scores,
        _data,
        _rewritten,
        _duplicates,
        _quarantine,
        _workers,
        _table,
        _predicted,
        _plan,
    )
    body = "".join(section(facts) for section in sections)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:; media-src data:">'
        f"<title>{escape(facts['name'])} · Gristmill</title><style>{style}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def _header(facts: Facts) -> str:
    rows_in, rows_out, aside = facts["rows_in"], facts["rows_out"], facts["quarantined"]
    share = "" if facts["kept_share"] is None else f"{facts['kept_share']:.1%} of the input"
    rate = f"{rows_in / facts['seconds']:,.0f} rows/s" if facts["seconds"] else ""
    tiles = [
        (f"{rows_in:,}", "rows in", ""),
        (f"{rows_out:,}", "rows out", share),
        (f"{aside:,}", "quarantined", ""),
        (f"{facts['seconds']:,.1f} s", "elapsed", rate),
        (f"{facts['bytes'] / 1e6:,.1f} MB", "written", count_noun(facts["files"], "file")),
    ]
    shown = "".join(f"<div class=tile><b>{big}</b>{what}<br><small>{more}</small></div>" for big, what, more in tiles)
    failed = "" if facts["outcome"] == "finished" else f"<p class=failed>{escape(facts['outcome'])}</p>"
    when = f"<p class=quiet>Gristmill, {escape(facts['finished'])}</p>"
    notes = "".join(f"<p class=quiet>{note}</p>" for note in _attempts(facts))
    return f"<header><h1>{escape(facts['name'])}</h1>{when}{failed}{notes}<div class=tiles>{shown}</div></header>"


def _attempts(facts: Facts) -> list[str]:
    """What to know of a run that was stopped and went on."""
    notes = (
        [f"{facts['attempts']:,} attempts, counted together; each source counts once."] if facts["attempts"] > 1 else []
    )
    if facts["not_counted"]:
        before = (
            "was finished by an earlier attempt; its"
            if facts["not_counted"] == 1
            else ("were finished by an earlier attempt; their")
        )
        notes.append(f"{count_noun(facts['not_counted'], 'source')} {before} rows are not counted.")
    if unfinished := facts.get("unfinished_rows"):
        notes.append(
            f"{count_noun(unfinished, 'row')} of sources that were not finished {'is' if unfinished == 1 else 'are'} "
            "included here. The run reads them again when it goes on, and counts them once."
        )
    return notes


def _funnel(facts: Facts) -> str:
    key = "<p class='key quiet'><i class=kept></i>kept<i class=dropped></i>dropped<i class=aside></i>quarantined</p>"
    return _section("From input to output", key + charts.funnel_chart(facts["stages"]))


def _scores(facts: Facts) -> str:
    """A card per stage that judged rows: how its scores are spread, and some of what it dropped."""
    judged = [stage for stage in facts["stages"] if _judges(stage)]
    return _section("Scores", f"<div class=cards>{''.join(map(_score_card, judged))}</div>" if judged else "")


def _judges(stage: Facts) -> bool:
    return bool(stage.get("spread") or _bars(stage)) and not _passes(stage)


def _passes(stage: Facts) -> bool:
    """Whether rows come in or go out here: what is known of them is of all rows, not of a verdict."""
    return "bytes" in stage.get("spread", {}) and not stage.get("thresholds")


def _score_card(stage: Facts) -> str:
    parts = [f"<h3>{escape(stage['name'])}</h3>"]
    for name, found in stage["spread"].items():
        threshold, limits = stage["thresholds"].get(name, ""), stage["limits"].get(name, ())
        if {found["least"], *limits} != {found["most"]}:  # where all are just at the limit there is nothing to see
            parts.append(charts.histogram(name, found, limits))
        named = any(one["rule"] and one["filter"] == name for one in stage.get("rules") or ())
        condition = f"{name} {threshold}"
        if name == SIMILARITY and len(limits) == 1:
            condition = f"dropped where the similarity to a row that is kept is {limits[0]:g} or more"
        parts.append(f"<p><small>{escape(condition)}</small></p>" if threshold and not named else "")
    bars = _bars(stage)
    dropped = stage["dropped"]
    share = f" ({dropped / stage['rows_in']:.2%})" if stage["rows_in"] else ""
    parts.append(f"<p>{dropped:,} dropped{share}</p>")
    parts.append(bars)
    parts.append(_samples(stage["samples"], "dropped", "Examples of dropped rows"))
    return f"<div class='card{' whole' if bars else ''}'>{''.join(parts)}</div>"


def _bars(stage: Facts) -> str:
    """A bar for each rule of a stage that has several, and one for each label that a filter gives."""
    parts, rules = [], stage.get("rules") or ()
    if len(rules) > 1:
        labels = dict.fromkeys(one["filter"] for one in rules)
        for label in labels:
            own = [one for one in rules if one["filter"] == label]
            is_group = len(labels) > 1 and any(one["rule"] for one in own)
            parts.append(f"<h4>{escape(label)}</h4>" if is_group else "")
            parts.append(charts.rule_bars(own, stage["dropped"]))
        filters = "filter that dropped it, and there for the " if len(labels) > 1 else ""
        if any(one["rule"] for one in rules):
            parts.append(f"<p><small>A row counts for the {filters}first rule that it breaks.</small></p>")
        elif filters:
            parts.append("<p><small>A row counts for the first filter that drops it.</small></p>")
    for name, counts in (stage.get("labels") or {}).items():
        kept = {label: found["rows"] - found["dropped"] for label, found in counts.items()}
        shown = charts.before_after_bars({label: found["rows"] for label, found in counts.items()}, kept)
        parts.append(f"<h4>{escape(name)}: rows kept, by label</h4>{shown}")
    return "".join(parts)


def _samples(samples: Sequence[Facts], kind: str, title: str) -> str:
    if not samples:
        return ""
    rows = "".join(_row(sample, kind) for sample in samples)
    return f"<details><summary>{title}</summary>{rows}</details>"


def _row(sample: Facts, kind: str) -> str:
    where = [str(sample[name]) for name in ("file", "position") if sample.get(name) is not None]
    scores = [f"{name} = {_score(value)}" for name, value in sample.get("scores", {}).items()]
    row = dict(sample["row"])
    text = row.pop(_longest(row), None)
    rest = [f"{name}: {value}" for name, value in row.items() if value is not None]
    body = f"<pre>{escape(str(text))}</pre>" if text is not None else ""
    small = escape(" · ".join([":".join(where), *scores]))
    sound = sample.get("preview", "")
    rest_shown = escape(" · ".join(rest))
    return f"<div class='row {kind}'><small>{small}</small>{sound}{body}<small>{rest_shown}</small></div>"


def _longest(row: Facts) -> str:
    """The column that is shown as text."""
    texts = {name: len(value) for name, value in row.items() if isinstance(value, str)}
    return "text" if "text" in row else max(texts, key=lambda name: texts[name], default="text")


def _score(value: Any) -> str:
    return charts.format_number(value) if isinstance(value, int | float) else str(value)


def _data(facts: Facts) -> str:
    """Lengths and languages where rows come in and where they go out, and some of those that were kept."""
    ends = [stage for stage in facts["stages"] if _passes(stage)]
    if not ends:
        return ""
    first, last = ends[0], ends[-1]
    titles = ((first, "Bytes of a text, as read"), (last, "Bytes of a text, as written"))
    cards = [
        f"<div class=card><h3>{title}</h3>{charts.histogram(title, stage['spread']['bytes'])}"
        f"<p class=quiet>median {charts.format_number(stage['spread']['bytes']['middle'])}</p></div>"
        for stage, title in (titles if first is not last else titles[:1])
    ]
    lists = [
        f"<h3>Column {escape(name)}</h3>{charts.before_after_bars(counts, last['values'].get(name, {}))}"
        for name, counts in first["values"].items()
    ]
    kept = f"<div class=card>{_samples(last['samples'], 'kept', 'Some of the rows that were kept')}</div>"
    return _section("The data", f"<div class=cards>{''.join(cards)}</div>{''.join(lists)}{_sources(facts)}{kept}")


def _sources(facts: Facts) -> str:
    found = facts.get("sources") or {}
    if not found.get("before"):
        return ""
    before, after, title = found["before"], found["after"], "By column source"
    if found["by"] != "source":
        folder, title = min((name.rpartition("/")[0] for name in before), key=len), "By input file"
        if folder and all(name.startswith(f"{folder}/") for name in before):
            title = f"By input file, in {escape(folder)}"
            before, after = (
                {name.removeprefix(f"{folder}/"): count for name, count in counts.items()} for counts in (before, after)
            )
    more = found["count"] - len(before)
    rest = f"<p class=quiet>and {more:,} more</p>" if more > 0 else ""
    return f"<h3>{title}</h3>{charts.before_after_bars(before, after)}{rest}"


def _rewritten(facts: Facts) -> str:
    """Texts before and after a model has rewritten them, side by side."""
    pairs = "".join(
        f"<div class=card><small>{escape(str(pair['stage']))} · {escape(str(pair['source'] or ''))}</small>"
        f"<div class=pair><div class='row dropped'><small>before</small><pre>{escape(str(pair['before']))}</pre></div>"
        f"<div class='row kept'><small>after</small><pre>{escape(str(pair['after']))}</pre></div></div></div>"
        for pair in facts.get("rewritten") or ()
    )
    return _section("Before and after", f"<div class=pairs>{pairs}</div>" if pairs else "")


def _duplicates(facts: Facts) -> str:
    """How many rows each stage has found alike, and the largest clusters of them."""
    found = facts.get("duplicates") or {}
    tables = found.get("tables")
    if not tables:
        return ""
    names = [one["stage"] if len(tables) > 1 else "" for one in tables]
    sentences = "".join(_cluster_sentence(one, name) for one, name in zip(tables, names, strict=True))
    sizes = "".join(_sizes(one, name) for one, name in zip(tables, names, strict=True))
    examples = "".join(_cluster(one, one["stage"] if len(tables) > 1 else "") for one in found["examples"])
    note = f"<p class=quiet>{escape(found['note'])}</p>" if found.get("note") else ""
    return _section("Duplicates", f"{sentences}<div class=cards>{sizes}{examples}</div>{note}")


def _cluster_sentence(found: Facts, stage: str) -> str:
    """What a stage has found. Each sees the rows that those before it keep, so that they cannot be added up."""
    by = f"{escape(stage)}: " if stage else ""
    return f"<p>{by}{found['rows']:,} rows are in {count_noun(found['clusters'], 'cluster')}; {_kept_of(found)}.</p>"


def _sizes(found: Facts, stage: str) -> str:
    title = f"<h3>{escape(stage)}</h3>" if stage else ""
    head = "<tr><th scope=col class=n>cluster size<th scope=col class=n>clusters<th scope=col class=n>rows</tr>"
    sizes = "".join(
        f"<tr><td class=n>{size:,}<td class=n>{count:,}<td class=n>{size * count:,}</tr>"
        for size, count in _smallest_and_largest(found["sizes"])
    )
    return f"<div class='card scroll' tabindex=0>{title}<table>{head}{sizes}</table></div>"


def _kept_of(found: Facts) -> str:
    kept = found["kept"]
    if not kept:
        return "none was kept: the index already has similar rows"
    if kept == found["clusters"]:
        return "one of each was kept"
    return f"{kept:,} {'was' if kept == 1 else 'were'} kept; the others are duplicates of these or of rows in the index"


def _smallest_and_largest(sizes: Mapping[Any, int], most: int = 12) -> list[tuple[int, int]]:
    """The smallest sizes and the largest."""
    pairs = sorted((int(size), count) for size, count in sizes.items())
    return pairs if len(pairs) <= most else [*pairs[: most - 3], *pairs[-3:]]


def _cluster(example: Facts, stage: str) -> str:
    rows = []
    for member in example["members"]:
        kind = "kept" if member["kept"] else "dropped"
        known = member["similarity"] is not None and not member["kept"]
        similar = f": {similarity_sentence(member['similarity'], member.get('partner'), '')}" if known else ""
        text = "" if member["text"] is None else f"<pre>{escape(member['text'] or '(empty)')}</pre>"
        name = escape(str(member["id"]))
        rows.append(f"<div class='row {kind}'><small>{name} · {kind}{escape(similar)}</small>{text}</div>")
    more = example["size"] - len(example["members"])
    rest = f"<p class=quiet>and {more:,} more</p>" if more > 0 else ""
    by = f", {escape(stage)}" if stage else ""
    shown = f"<summary>cluster of {count_noun(example['size'], 'row')}{by}</summary>{''.join(rows)}{rest}"
    return f"<div class=card><details>{shown}</details></div>"


def _quarantine(facts: Facts) -> str:
    records = facts["quarantine"]
    body = "".join(map(_quarantined, records))
    head = "<tr><th>stage<th class=wide>error<th class=wide>where<th>record</tr>"
    return _section(
        "Quarantine", f"<div class='card scroll' tabindex=0><table>{head}{body}</table></div>" if records else ""
    )


def _quarantined(record: Facts) -> str:
    cells = (record["stage"], record["error"], f"{record['file'] or ''}:{record['position']}", record["row"])
    return f"<tr>{''.join(f'<td>{escape(str(cell))}' for cell in cells)}{record.get('preview', '')}</tr>"


def _workers(facts: Facts) -> str:
    points = facts["timeline"]
    if len(points) < 3:
        return ""
    cards = [
        f"<div class=card><h3>{escape(name)}</h3>{charts.busy_workers_chart(points, index)}"
        "<p class=quiet>busy workers</p></div>"
        for index, name in enumerate(facts["pools"])
    ]
    return _section("Workers over time", f"<div class=cards>{''.join(cards)}</div>")


def _table(facts: Facts) -> str:
    numbers = ("rows_in", "rows_out", "dropped", "quarantined")
    lines = []
    for stage in facts["stages"]:
        counts = "".join(f"<td class=n>{stage[name]:,}" for name in numbers)
        notes = ", ".join(count_texts(stage["counts"]))
        speed = f"{stage['mb_per_s']:,.1f}" if stage["mb_per_s"] else ""
        seconds = f"<td class=n>{stage['seconds']:,.2f}<td class=n>{speed}"
        lines.append(f"<tr><td>{escape(stage['name'])}{counts}{seconds}<td>{escape(notes)}</tr>")
    titles = ("stage", "rows in", "kept", "dropped", "quarantined", "seconds", "MB/s", "notes")
    head = "".join(f"<th{' class=n' if 0 < at < 7 else ''}>{title}" for at, title in enumerate(titles))
    note = "<p class=quiet>The seconds of a stage are summed over workers.</p>"
    table = f"<div class='card scroll' tabindex=0><table><tr>{head}</tr>{''.join(lines)}</table></div>{note}"
    return _section("Stages", table)


def _predicted(facts: Facts) -> str:
    """What an estimate said, beside what it was."""
    lines = []
    for line in facts.get("predicted") or ():
        said, was = line["predicted"], line["actual"]
        cells = "".join(f"<td class=n>{_amount(line['what'], value)}" for value in (said, was))
        lines.append(f"<tr><td>{escape(_PREDICTED[line['what']])}{cells}<td class=n>{said / was:.2f} ×</tr>")
    titles = "".join(f"<th scope=col class=n>{title}" for title in ("predicted", "actual", "ratio"))
    head = f"<tr><td>{titles}</tr>"
    table = f"<div class='card scroll' tabindex=0><table>{head}{''.join(lines)}</table></div>"
    return _section("Predicted and actual", table if lines else "")


_PREDICTED = {
    "seconds": "time",
    "rows_in": "rows in",
    "rows_out": "rows out",
    "output_bytes": "output",
    "memory_bytes": "memory",
}


def _amount(what: str, value: float) -> str:
    if what.endswith("_bytes"):
        return f"{value / 1e6:,.1f} MB"
    return f"{value:,.1f} s" if what == "seconds" else f"{value:,.0f}"


def _plan(facts: Facts) -> str:
    parts = [f"{name} {number}" for name, number in facts["versions"].items()]
    parts += [f"{name} {megabytes:,.0f} MB at most" for name, megabytes in facts["memory"].items()]
    parts += [f"{seed['stage']} {seed['parameter']}={seed['seed']}" for seed in facts["seeds"]]
    steps = f"<details><summary>The parts that stages are made of</summary><pre>{escape(facts['plan'])}</pre></details>"
    plan = f"<div class=card><pre>{escape(facts['pipeline'])}</pre>{steps}</div>"
    return _section("Plan", plan) + f"<footer>{escape(' · '.join(parts))}</footer>"
