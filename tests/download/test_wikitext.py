"""Wikitext to text: a table of what people write, and what must hold whatever they write."""

# ruff: noqa: E501, RUF005  rows of tables

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.download.wiki.wikitext import WikitextCleaner

PAGES = [
    ("", ""),
    ("plain text", "plain text"),
    ("'''Bold''' and ''italic'' and '''''both'''''.", "Bold and italic and both."),
    ("l'''arbre'' est", "l'arbre est"),
    ("'''Le''' mot d'''Alembert''.", "Le mot d'Alembert."),
    ("it's the dogs' ''own''", "it's the dogs' own"),
    ("[[Berlin]] and [[Paris|the city]]", "Berlin and the city"),
    ("[[bus]]es, [[Foo (bar)|]]", "buses, Foo"),
    ("see [[:Category:Dogs]] and [[#Part|part]]", "see Category:Dogs and part"),
    ("a [[File:x.jpg|thumb|A [[cat]] on {{convert|2|m}}]] b", "a b"),
    ("[[Datei:x.png|mini|Text]]Wort", "Wort"),
    ("[[Fichier:x.png|vignette|Un [[chat]]]]mot", "mot"),
    ("[[Файл:x.jpg|мини|подпись]]слово", "слово"),
    ("[[ファイル:x.jpg|thumb|説明]]語", "語"),
    ("[[ملف:x.jpg|تصغير]]كلمة", "كلمة"),
    ("text\n[[Category:Dogs]]\n[[Kategorie:Hund]]\n[[Категория:Собаки]]", "text"),
    ("text\n[[de:Hund]]\n[[zh-yue:狗]]", "text"),
    ("[[wikt:word|word]] and [[s:Hamlet]]", "word and s:Hamlet"),
    ("a [http://x.org the site] b [http://y.org] c", "a the site b c"),
    ("bare http://x.org stays", "bare http://x.org stays"),
    ("one{{citation needed|date=May 2020}}.", "one."),
    ("a {{b|{{c|{{d}}}}|[[e]]}} f", "a f"),
    ("Foo ({{lang-de|Fuß}}; {{IPA-de|fuːs}}) is", "Foo (Fuß) is"),
    ("Foo ({{IPAc-en|f|uː}}) is", "Foo is"),
    ("Foo ({{IPAc-en|f|uː}}; born 1900) is", "Foo (born 1900) is"),
    ("{{lang|fr|[[chat|le chat]]}}", "le chat"),
    ("{{convert|5|km|mi}} and {{convert|5|to|8|km|mi}}", "5 km and 5 to 8 km"),
    ("{{nowrap|no break}}{{snd}}x {{frac|1|2}} {{frac|3|1|2}}", "no break – x 1/2 3 1/2"),
    ("{{Nihongo|Tokyo|東京|Tōkyō}}", "Tokyo (東京, Tōkyō)"),
    ("{{formatnum:12345}} {{PAGENAME}}", "12345 Title"),
    ("{{quote|text=To be.|author=S}}", "To be."),
    ("{{Infobox\n| name = x\n| list = {{plainlist|\n* a\n* b}}\n|}}Text", "Text"),
    ("{{a|{{b|}}}}Text", "Text"),
    ("{{{1|default}}} x", "default x"),
    ("{| class=wikitable\n! a !! b\n|-\n| 1 || {{c|2}}\n|}\nText", "Text"),
    ("{|\n|\n{|\n| inner\n|}\n|}\nText", "Text"),
    ("{{t|\n{|\n| x\n|}}}Text", "Text"),
    ("Text\n{| class=x\n| never closed", "Text"),
    ("a<ref>b</ref> c<ref name=x /> d<ref name='y'>{{cite|z}}</ref>.", "a c d."),
    ("a<ref>never closed\nb", "a\nb"),
    ("a<ref>typo<ref/> b<ref>c</ref> d", "a b d"),
    ("a<!-- hidden\n [[x]] -->b", "ab"),
    ("a<!-- never closed", "a never closed"),
    ("<nowiki>[[x]] {{y}}</nowiki> z", "[[x]] {{y}} z"),
    ("<math>x^{{2}}</math> and <chem>H2O</chem>", "$x^{{2}}$ and $H2O$"),
    ("<syntaxhighlight lang=c>\nint x[[2]];\n</syntaxhighlight>", "int x[[2]];"),
    ("<gallery>\nFile:a.jpg|A\n</gallery>Text", "Text"),
    ("x<sup>2</sup> H<sub>2</sub>O 1<sup>st</sup>", "x² H₂O 1st"),
    ("a<br />b<br>c", "a\nb\nc"),
    ("<div class='x'>''in''</div>", "in"),
    ("a < b and c > d, <b>bold</b> <unknown>", "a < b and c > d, bold <unknown>"),
    ("x<span style='display:none'>y</span>z", "xz"),
    ("a&nbsp;b &amp; c &lt;d&gt; &#x41;&#66; AT&T &bogus;", "a b & c <d> AB AT&T &bogus;"),
    ("__NOTOC__a __БЕЗ_ОГЛАВЛЕНИЯ__ __目次非表示__ __init__", "a __init__"),
    ("Lead.\n== One ==\nText\n=== Two ===\n=== Three ===\nMore", "Lead.\n\nOne\n\nText\n\nThree\n\nMore"),
    ("Lead.\n== References ==\n{{reflist}}\n== Links ==\n", "Lead."),
    ("== a = b ==\nx", "a = b\n\nx"),
    ("* one\n** two\n# three\n: four\n; term: what", "- one\n- two\n- three\nfour\nterm: what"),
    ("* {{flag|x}}\n* b", "- b"),
    ("a\n----\nb", "a\n\nb"),
    ("-{zh-hans:软件; zh-hant:軟體}- -{A}-", "软件 A"),
    ("a\n\n\n\n\nb   c", "a\n\nb c"),
    ("stray }} and ]] and {{ and [[", "stray and and and"),
]


@pytest.mark.parametrize(("page", "text"), PAGES, ids=[page[:30] for page, _ in PAGES])
def test_pages(page: str, text: str) -> None:
    assert WikitextCleaner("zh" if "-{" in page else "en").clean(page, "Title") == text


def test_formulas_can_be_left_out() -> None:
    assert WikitextCleaner(math="drop").clean("let <math>x</math>, be") == "let, be"
    with pytest.raises(ValueError, match="'keep' or 'drop'"):
        WikitextCleaner(math="maybe")


def test_templates_mean_what_they_mean_in_their_language() -> None:
    assert WikitextCleaner("fr").clean("au {{s|XIX}}, {{unité|12|km}}") == "au XIXe siècle, 12 km"
    assert WikitextCleaner("en").clean("x {{s|XIX}} y") == "x y"


def test_namespaces_of_the_wiki_itself_are_known() -> None:
    assert WikitextCleaner("xx", namespaces=["Bildli"]).clean("a [[Bildli:x.jpg|thumb|y]] b") == "a b"


MARKUP = st.lists(
    st.sampled_from(
        ["[[", "]]", "{{", "}}", "{|", "|}", "|", "\n", "=", "==", "*", "#", "'''", "''", "<ref>", "</ref>", "<ref/>"]
        + [
            "<!--",
            "-->",
            "<b>",
            "</b>",
            "a",
            "b c",
            "File:",
            "lang|",
            "http://",
            "[",
            "]",
            "{",
            "}",
            "\x01",
            "\x02",
            "0\x03",
        ]
        + ["<math>", "</math>", "__TOC__", "-{", "}-", ":", " "]
    ),
    max_size=60,
).map("".join)


@given(MARKUP)
@example("[[" * 60 + "a" + "]]" * 60)
@example("{{nowrap|" * 60 + "a" + "}}" * 60)
@example("[[[[a]]]")
def test_no_page_fails_and_no_markup_is_left(page: str) -> None:
    bare = page.replace("<math>", "").replace("</math>", "")
    text = WikitextCleaner().clean(bare)
    assert not re.search(r"\[\[|\]\]|\{\{|\}\}|''|<ref|</?b>|[\x00-\x08]", text), text
    assert text == text.strip()
    WikitextCleaner().clean(page)


@settings(max_examples=30)
@given(st.text(max_size=100))
def test_any_text_is_cleaned(page: str) -> None:
    assert isinstance(WikitextCleaner().clean(page), str)


@settings(max_examples=30)
@given(st.text(st.characters(whitelist_categories=["L", "Nd"]), min_size=1, max_size=50))
def test_words_are_left_alone(words: str) -> None:
    assert WikitextCleaner().clean(words) == words.strip()


def test_hostile_pages_take_no_longer_than_others() -> None:
    """Each of these would take minutes if work grew with the square of the length."""
    for page in (
        "[[a" * 20_000, "{{a|" * 20_000, "{{nowrap|" * 20_000, "<ref>" * 20_000, "<!--" * 20_000, "[http://" * 20_000,
        "{{x}}" * 20_000 + ")", "{|\n" * 20_000, "<math>" * 20_000, "'" * 60_000, "=" * 60_000, "(" * 60_000,
        "{{nowrap|" + "|" * 60_000 + "}}", " \x01" * 20_000, "<span " * 20_000, "__a" * 20_000, "-{" * 20_000, "{{{" * 20_000,
    ):  # fmt: skip
        WikitextCleaner().clean(page)


def test_a_tag_that_hides_again_and_again_takes_no_longer() -> None:
    assert WikitextCleaner("en").clean("Shown <span style='display:none'>hidden</span> text") == "Shown text"
    assert "Shown" in WikitextCleaner("en").clean("Shown <span " + "display:none " * 40_000)
