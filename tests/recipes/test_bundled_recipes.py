"""Bundled recipes from the command: what must stay stays, and what must go goes."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from gristmill.cli.main import app
from tests.interleaved.interleaved_fixtures import mint_files, smooth_picture, tar_bytes

ENGLISH = (
    "The miller rose before the sun and walked down to the stream, where the wheel had stood still since autumn. "
    "He had promised that the grain would be ground by evening, and people from the village were to come with carts. "
    "Nobody could remember a winter with so much ice, nor a spring that took so long to carry it away."
)
GERMAN = (
    "Der Müller stand vor der Sonne auf und ging zum Bach hinunter, wo das Rad seit dem Herbst stillgestanden hatte. "
    "Er hatte versprochen, dass das Korn bis zum Abend gemahlen sei, und die Leute aus dem Dorf wollten mit Karren "
    "kommen. Niemand erinnerte sich an einen Winter mit so viel Eis, noch an einen Frühling, der so lange brauchte."
)
CHINESE = (
    "磨坊主在日出之前就起床了，走到溪边去看那个从秋天起就停着不动的水轮。他答应过傍晚以前把粮食磨好，"
    "村里的人都会赶着车来取面粉。谁也不记得有哪个冬天结过这么多的冰，也没有哪个春天要花这么久才把冰化掉。"
)
CODE = """# Grinds grain: how much flour a sack gives, and how long that takes.
RATE = 12.5
from tests.interleaved.interleaved_fixtures import mint_files, smooth_picture, tar_bytes


def flour(sacks, share=0.75):
    # What the stones leave behind is fed to the pigs.
    kept = sacks * share
    if kept < 0:
        raise ValueError("sacks must not be negative")
    return kept


def hours(sacks):
    token = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
    return sacks / RATE, token
"""

CASES: list[tuple[str, dict[str, str], dict[str, str]]] = [
    (
        "gopher",
        {"prose": ENGLISH},
        {
            "short": "Nobody came to the mill, and that was that.",
            "repeated": "The miller and the wheel have gone to the stream with the cart. " * 12,
            "symbols": ENGLISH + " #" * 20,
            "other language": GERMAN,
        },
    ),
    (
        "heuristic-multilingual",
        {"english": ENGLISH, "german": GERMAN, "chinese": CHINESE},
        {
            "short": "Niemand kam zur Mühle.",
            "numbers": " ".join(str(number) for number in range(1000, 1100)),
            "repeated": "Das Rad dreht sich und dreht sich und dreht sich. " * 12,
            "links": " ".join(f"https://example.org/seite/{number}" for number in range(60)),
        },
    ),
    (
        "code",
        {"module": CODE},
        {
            "short": "print(1)\n# one line",
            "markup": '<?xml version="1.0"?>\n' + "# x\n" * 20,
            "numbers": "# table\n" + "1, 2, 3, 4, 5, 6, 7, 8, 9\n" * 40,
            "long lines": "# data\n" * 12 + "x = '" + "abc" * 500 + "'\n",
            "no comment": "\n".join(f"variable_{number} = other" for number in range(20)),
        },
    ),
]


@pytest.mark.parametrize(("name", "stay", "go"), CASES, ids=[case[0] for case in CASES])
def test_a_recipe_keeps_and_drops_what_it_should(
    name: str, stay: dict[str, str], go: dict[str, str], tmp_path: Path
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    lines = [json.dumps({"id": key, "text": text}) for key, text in {**stay, **go}.items()]
    (source / "documents.jsonl").write_text("\n".join(lines) + "\n")
    settings = ["--set", f"input={source}", "--set", f"output={tmp_path / 'out'}"]
    done = CliRunner().invoke(app, ["run", name, *settings, "--workers", "0", "--quiet"])
    assert done.exit_code == 0, done.output
    [written] = (tmp_path / "out").glob("*.jsonl")
    rows = {row["id"]: row for row in map(json.loads, written.read_text().splitlines())}
    assert set(rows) == set(stay)
    if name == "heuristic-multilingual":
        assert {row["language"] for row in rows.values()} == {"en", "de", "zh"}
    if name == "code":
        assert "ghp_" not in rows["module"]["text"]
        assert rows["module"]["comments"] > 0.1


def test_the_recipe_for_interleaved_documents_keeps_good_ones_with_their_pictures(tmp_path: Path) -> None:
    words = "The mill by the river has ground the corn of the village for three hundred years, and it still turns."
    good = {**mint_files("good", [words, None, "And this is its wheel."], [None, "good.0.png", None])}
    copy = mint_files("copy", [words, None, "And this is its wheel."], [None, "copy.0.png", None])
    blurred = mint_files("blurred", [f"{words} Nobody knows who built it.", None], [None, "blurred.0.png"])
    blurred["blurred.0.png"] = smooth_picture()
    short = mint_files("short", ["A mill.", None], [None, "short.0.png"])
    many = mint_files("many", [words, *[None] * 12], [None, *[f"many.{at}.png" for at in range(12)]])
    (tmp_path / "in.tar").write_bytes(tar_bytes({**good, **copy, **blurred, **short, **many}))
    settings = [f"input={tmp_path / 'in.tar'}", f"output={tmp_path / 'out'}"]
    command = ["run", "interleaved", "--workers", "0", *(part for one in settings for part in ("--set", one))]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    [tar] = (tmp_path / "out").glob("*.tar")
    with tarfile.open(tar) as archive:
        assert archive.getnames() == ["good.json", "good.0.png"]
        [_, image] = archive.getmembers()
        assert archive.extractfile(image).read() == good["good.0.png"]  # type: ignore[union-attr]


def test_the_recipe_for_images_keeps_one_of_each_and_none_that_is_tiny_or_blank(tmp_path: Path) -> None:
    from PIL import Image

    from tests.image.image_fixtures import archive, encode

    photos = sorted((Path(__file__).parents[2] / "examples" / "images" / "photos").glob("*.jpg"))[:3]
    files = []
    for photo in photos:
        image = Image.open(photo)
        files += [(f"{photo.stem}.jpg", photo.read_bytes())]
        files += [(f"{photo.stem}-copy.png", encode(image.resize((image.width // 2, image.height // 2)), "png"))]
        files += [(f"{photo.stem}-tiny.jpg", encode(image.resize((60, 50)), "jpeg"))]
    files += [("blank.jpg", encode(Image.new("RGB", (300, 300), "grey"), "jpeg"))]
    archive(tmp_path / "in.tar", files)
    settings = [f"input={tmp_path / 'in.tar'}", f"output={tmp_path / 'out'}"]
    command = ["run", "images", "--workers", "0", *(part for one in settings for part in ("--set", one))]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    [index] = (tmp_path / "out").glob("*.parquet")
    assert pq.read_table(index).column("image_id").to_pylist() == [photo.stem for photo in photos]
