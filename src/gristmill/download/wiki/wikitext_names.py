"""Names used by wikis of many languages: of the namespaces for media and categories, and of templates that hold text.

The header of a dump has the names of its own namespaces; the names below add the aliases that it omits.

Gives up: templates that are not in these tables. What they would show is dropped.
"""

# ruff: noqa: E501, SIM905  lists of words read best as text

from __future__ import annotations

from collections.abc import Callable, Sequence

MEDIA = frozenset(
    """
    file image media fil fail fayl fájl fișier fişier bild bilde billede beeld lêer datei medium fichier média archivo
    imagen medio immagine ficheiro arquivo imagem imaxe multimédia bestand afbeelding tiedosto kuva mynd skrá plik grafika
    soubor súbor kép imagine datoteka slika датотека слика податотека файл картинка изображение зображення выява сурет
    αρχείο εικόνα dosya resim şəkil tasvir ملف صورة پرونده تصویر فائل קובץ תמונה चित्र চিত্র படிமம் దస్త్రం బొమ్మ
    പ്രമാണം ചിത്രം ಚಿತ್ರ ચિત્ર ਤਸਵੀਰ ගොනුව රූපය ไฟล์ ภาพ berkas gambar imej talaksan ファイル 画像 メディア 파일 그림
    文件 檔案 档案 图像 圖像 ფაილი სურათი պատկեր ֆայլ pilt attēls vaizdas fitxategi irudi fitxer imatge dosiero fasciculus
    imago delwedd íomhá picha skeda figura spesiaal payl larawan медиа медія медији wêne dosye ဖိုင် រូបភាព ຮູບ
    """.split()
) | {"tập tin", "hình"}

CATEGORY = frozenset(
    """
    category kategorie catégorie categoría categoria categorie kategori luokka flokkur kategoria kategória kategorija
    категорија категория категорія катэгорыя санат κατηγορία kateqoriya turkum تصنيف رده קטגוריה زمرہ श्रेणी वर्ग
    বিষয়শ্রেণী பகுப்பு వర్గం വർഗ്ഗം ವರ್ಗ શ્રેણી ਸ਼੍ਰੇਣੀ ප්‍රවර්ගය หมวดหมู่ kategorya カテゴリ 분류 分类 分類 კატეგორია
    կատեգորիա kategooria kategorio categori catagóir jamii ангилал төркем kaarangay kategoriya kategorî ကဏ္ဍ ចំណាត់ថ្នាក់ ໝວດ
    """.split()
) | {"thể loại"}

TemplateText = Callable[[Sequence[str], dict[str, str]], str]
"""Returns the text that a template shows, given its unnamed and its named parameters."""


def nth_argument(index: int) -> TemplateText:
    return lambda args, named: args[index] if len(args) > index else named.get(str(index + 1), "")


def last_argument(args: Sequence[str], _: dict[str, str]) -> str:
    return args[-1] if args else ""


def _text(args: Sequence[str], named: dict[str, str]) -> str:
    return named.get("text") or named.get("quote") or named.get("1") or (args[0] if args else "")


def _fixed(text: str) -> TemplateText:
    return lambda args, named: text


def _measure(args: Sequence[str], _: dict[str, str]) -> str:
    """`{{convert|5|to|8|km|mi}}` shows "5 to 8 km": the value as written, without the converted one."""
    between = {"to", "and", "x", "by", "or", "-", "–", "à", "et", "y"}
    parts = list(args[:4] if len(args) > 2 and args[1] in between else args[:2])
    return " ".join(part for part in parts if part)


def _fraction(args: Sequence[str], _: dict[str, str]) -> str:
    integer, parts = (args[:1], args[1:3]) if len(args) > 2 else ((), args[:2])
    return " ".join([*integer, "/".join(["1", *parts] if len(parts) == 1 else parts)])


def _value(args: Sequence[str], named: dict[str, str]) -> str:
    return f"{args[0] if args else ''} {named.get('u') or named.get('ul') or ''}".strip()


def _joined(args: Sequence[str], _: dict[str, str]) -> str:
    return "".join(args)


def _spaced(args: Sequence[str], _: dict[str, str]) -> str:
    return " ".join(arg for arg in args if arg)


def _nihongo(args: Sequence[str], _: dict[str, str]) -> str:
    first, rest = (args[0] if args else ""), ", ".join(arg for arg in args[1:3] if arg)
    return f"{first} ({rest})" if first and rest else first or rest


def _before(word: str) -> TemplateText:
    return lambda args, named: f"{word} {args[0]}" if args else word


def _after(word: str) -> TemplateText:
    return lambda args, named: f"{args[0]}{word}" if args else word


_SHOW_FIRST_ARGUMENT = """
    nowrap nobr nobreak nbr small big smaller larger em strong strongbad sic abbr tooltip ipa math mvar var mono code tt kbd
    samp text resize font color colour ill illm interlanguage\u00a0link link-interwiki nihongo2 not\u00a0a\u00a0typo as\u00a0written
    visible\u00a0anchor vanchor anchored formatnum lc uc lcfirst ucfirst smallcaps sc caps allcaps okina\u00a0word script linktext
    wikt-lang\u00a0text lien lnobr citation\u00a0bloc "  „ pn esd numberof nombre\u00a0romain langue\u00a0simple
    """

TEMPLATES: dict[str, TemplateText] = {
    **{
        name.strip().replace("\u00a0", " "): nth_argument(0) for name in _SHOW_FIRST_ARGUMENT.split(" ") if name.strip()
    },
    **dict.fromkeys(["lang", "langx", "transl", "transliteration", "langue", "язык", "wikt-lang"], last_argument),
    **dict.fromkeys(["quote", "blockquote", "quotation", "cquote", "bq", "verse translation", "citation bloc"], _text),
    **dict.fromkeys(["convert", "cvt", "unité", "unidad", "nombre", "unit", "nb"], _measure),
    **dict.fromkeys(["frac", "sfrac", "fraction"], _fraction),
    **dict.fromkeys(["chem", "chem2", "e-", "chem name"], _joined),
    **dict.fromkeys(["date", "date-", "datum"], _spaced),
    **{name: _before(name.upper()) for name in ("hms", "uss", "ss", "rms", "mv", "ms", "hmas", "hmcs", "ins", "sms")},
    **dict.fromkeys(["ndash", "en dash", "–"], _fixed("–")),
    **dict.fromkeys(["mdash", "em dash", "—"], _fixed("—")),
    **dict.fromkeys(["snd", "spnd", "spaced ndash", "snds", "spaced en dash"], _fixed(" – ")),
    **dict.fromkeys(["·", "dot", "middot", "•", "bull", "bullet"], _fixed(" · ")),
    **dict.fromkeys(["nbsp", "space", "clear space"], _fixed(" ")),
    **dict.fromkeys(["circa", "c.", "ca."], _before("c.")),
    "'": _fixed("'"),
    "!": _fixed("|"),
    "=": _fixed("="),
    "pi": _fixed("π"),
    "val": _value,
    "nihongo": _nihongo,
    "as of": _before("As of"),
}
"""By name in lower case, without the namespace and with spaces for underscores."""

BY_LANGUAGE: dict[str, dict[str, TemplateText]] = {
    "fr": {
        **dict.fromkeys(["s", "s-", "sp"], _after("e siècle")),
        **{name: _fixed(name) for name in ("e", "er", "ère", "ier", "1er", "1re", "2e")},
        "citation": _text,
        "citation étrangère": last_argument,
        "date de naissance": _spaced,
        "av jc": _fixed("av. J.-C."),
        "ap jc": _fixed("apr. J.-C."),
    },
    "es": {"siglo": _before("siglo"), "cita": _text},
    "de": {"zitat": _text, "nowiki": nth_argument(0), '"': nth_argument(0), "ens": nth_argument(0)},
    "it": {"citazione": _text, "sec": _before("secolo"), "unità": _measure},
    "pt": {"citação": _text, "séc": _before("século"), "dtext": _spaced},
    "ru": {
        "s": nth_argument(0),
        "начало цитаты": _text,
        "цитата": _text,
        "год": nth_argument(0),
        "число": nth_argument(0),
        "е": _fixed(" "),
    },
    "ja": {"読み仮名": nth_argument(0), "ルビ": nth_argument(0), "lang": last_argument},
    "zh": {"lang": last_argument, "link-en": nth_argument(0), "le": nth_argument(0), "tsl": last_argument},
}
