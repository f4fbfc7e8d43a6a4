"""Makes the pictures in this directory: a run in a terminal, its report, and the page of `gristmill view`.

    make screenshots

A Chromium must be on this machine. The terminal is emulated, so that what is seen is what people see.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from html import escape
from pathlib import Path

import pyte
from playwright.sync_api import Browser, sync_playwright

from gristmill import LocalExecutor
from gristmill.recipes import load_recipe
from gristmill.view.server import View

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
import corpus

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
COLUMNS, LINES = 104, 30
MOST_BYTES = 200_000
RUN = "out/run"
COLOURS = {"default": "#e8e6e1", "brown": "#e0b252", "green": "#62c198", "red": "#f0817d", "cyan": "#8cc4ee"}


def main() -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("there is no Chromium on this machine: install one, for example with apt install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        os.chdir(folder)
        Path("examples").symlink_to(ROOT / "examples")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        terminal(browser)
        curate()
        shoot(browser, f"file://{folder}/{RUN}/report.html", "report", 1100, 1345)
        page(browser)
        browser.close()


def curate() -> None:
    """The demo, with all that a page can show of it."""
    demo = load_recipe("examples/demo/recipe.yaml").build()
    demo.run(LocalExecutor(2), run_dir=RUN, rejected=True, scores=True, max_errors=None)


def page(browser: Browser) -> None:
    with View(RUN) as view:
        shoot(browser, f"{view.url}rows?in=dropped&search=people", "view", 1100, 800)
        changed = "row?in=dropped&stage=FuzzyDeduplicationStage&search=archive+of+this+site&n=0"
        shoot(browser, f"{view.url}{changed}", "view-row", 1100, 1130)
        low = "whatif?column=WordCountFilter&low=20&high=300"
        shoot(browser, f"{view.url}{low}", "view-whatif", 1100, 1000, scheme="dark")


def shoot(browser: Browser, url: str, name: str, width: int, height: int, scheme: str = "light") -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
    opened = context.new_page()
    opened.goto(url)
    opened.wait_for_timeout(1500)
    save(name, opened.screenshot())
    context.close()


def save(name: str, picture: bytes) -> None:
    path = HERE / f"{name}.png"
    path.write_bytes(picture)
    assert len(picture) < MOST_BYTES, f"{path} has {len(picture):,} bytes"
    print(f"{path.relative_to(ROOT)}  {len(picture):,} bytes")


# -- the terminal ----------------------------------------------------------------------------------------------

RECIPE = """\
name: web
stages:
  - JsonlReader: {file_paths: web}
  - Modify: {modifier_fn: UnicodeReformatter}
  - ScoreFilter: {filter_obj: {WordCountFilter: {min_words: 50}}}
  - ScoreFilter: {filter_obj: {UrlsFilter: {max_url_to_text_ratio: 0.2}}}
  - ScoreFilter: {filter_obj: {SymbolsToWordsFilter: {}}}
  - ScoreFilter: {filter_obj: {RepeatingTopNGramsFilter: {n: 2}}}
  - Modify: {modifier_fn: QuotationUnifier}
    with: {num_workers: 1}
  - JsonlWriter: {path: clean}
"""
FILES, FILE_BYTES, SHARE = 12, 8_000_000, 0.45


def terminal(browser: Browser) -> None:
    """A run that is about half done."""
    lines = corpus.documents()
    for number in range(FILES):
        path = Path(f"web/part-{number:02}.jsonl")
        path.parent.mkdir(exist_ok=True)
        corpus._write(path, lines, FILE_BYTES)
    Path("web.yaml").write_text(RECIPE)
    screen = played([str(Path(sys.executable).with_name("gristmill")), "run", "web.yaml"])
    shown = drawn(screen)
    while shown and not shown[0]:
        shown.pop(0)
    style = "body{margin:0;background:#16191b;padding:18px 22px;display:inline-block}"
    style += "pre{margin:0;color:#e8e6e1;font:14px/1.35 'DejaVu Sans Mono',monospace}"
    context = browser.new_context(viewport={"width": 1100, "height": 700}, device_scale_factor=2)
    opened = context.new_page()
    text = chr(10).join(["<b>$ gristmill run web.yaml</b>", *shown])
    opened.set_content(f"<style>{style}</style><pre>{text}</pre>")
    save("terminal", opened.locator("body").screenshot())
    context.close()


def played(command: list[str]) -> pyte.Screen:
    """A command in a terminal of its own, and what is to be seen there in the middle of it."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    leader, follower = pty.openpty()
    fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        while not halfway(screen):
            stream.feed(os.read(leader, 65536))
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the other side goes when it has ended
            while os.read(leader, 65536):
                pass
    os.close(leader)
    return screen


def halfway(screen: pyte.Screen) -> bool:
    """Whether enough is done, and all is there that a picture should show."""
    text = "\n".join(screen.display)
    done = re.search(r"(\d+) of (\d+) sources", text)
    return bool(done and int(done[1]) >= SHARE * int(done[2]) and "left" in text and "bottleneck" in text)


def drawn(screen: pyte.Screen) -> list[str]:
    """The lines of a screen as HTML."""
    lines = []
    for row in range(screen.lines):
        parts, text, style = [], "", None
        for column in range(screen.columns):
            cell = screen.buffer[row][column]
            now = (cell.fg, cell.bold)
            if now != style and text:
                parts.append(span(text, style))
                text = ""
            style, text = now, text + cell.data
        lines.append("".join([*parts, span(text, style)]).rstrip())
    while lines and not lines[-1]:
        lines.pop()
    return lines


def span(text: str, style: tuple[str, bool] | None) -> str:
    colour, bold = style or ("default", False)
    if not text.strip() or (colour == "default" and not bold):
        return escape(text)
    shade = COLOURS.get(colour, f"#{colour}" if len(colour) == 6 else COLOURS["default"])
    return f"<span style='color:{shade}{';font-weight:700' if bold else ''}'>{escape(text)}</span>"


if __name__ == "__main__":
    main()
