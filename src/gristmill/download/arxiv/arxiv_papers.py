"""arXiv: downloads the archives of LaTeX sources and extracts the text of papers.

    ArxivDownloadExtractStage(download_dir="papers")

The archives are in a requester-pays bucket, with a manifest of their checksums; `base` may also be the https URL of a
mirror, or another bucket. An archive is a tar of papers, each a gzipped file or tar. Nothing is unpacked to disk
(`paper_archive.py`). `latex.py` converts papers to text; papers without a LaTeX source are counted and dropped.

Gives up: papers available only as PDF, and old ones in PostScript.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import orjson

from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.errors import DownloadError
from gristmill.core.stage import CompositeStage, ProcessingStage
from gristmill.core.task import EmptyTask
from gristmill.download.arxiv.latex import KEEP, LatexCleaner
from gristmill.download.arxiv.paper_archive import SOURCE, read_papers
from gristmill.download.download_stages import DocumentDownloadExtractStage
from gristmill.download.downloaders import (
    ChecksumDownloader,
    ObjectDownloader,
    has_content,
    manners_for_host,
    with_checksum,
    without_fragment,
)
from gristmill.download.source_interfaces import DocumentExtractor, DocumentIterator, URLGenerator
from gristmill.io.fetch.http_client import HttpClient, Manners
from gristmill.io.storage.file_input import BadRecord, file_system
from gristmill.samples.batch import DocumentBatch

BUCKET = "s3://arxiv/src"
MANIFEST = "arXiv_src_manifest.xml"
_FILE = re.compile(r"<file>(.*?)</file>", re.DOTALL)
_FIELD = re.compile(r"<(filename|md5sum)>\s*([^<]*?)\s*</\1>")
_LINK = re.compile(r'href="([^"]+\.tar)"')
_OLD = re.compile(r"([a-z-]+(?:\.[A-Z]{2})?)(\d{7})")


class ArxivUrlGenerator(URLGenerator):
    """Lists the archives in the manifest, or if there is none, in the directory."""

    def __init__(
        self, base: str = BUCKET, storage_options: Mapping[str, Any] | None = None, manners: Manners | None = None
    ) -> None:
        self.base = base.rstrip("/")
        self.storage_options = requester_pays_options(self.base, storage_options)
        self.manners = manners_for_host(base, "", manners)

    def generate_urls(self) -> list[str]:
        manifest = self._manifest()
        if manifest is None:
            return sorted(self._directory())
        files = [dict(_FIELD.findall(entry)) for entry in _FILE.findall(manifest)]
        md5 = {file["filename"]: file.get("md5sum") for file in files if file.get("filename", "").endswith(".tar")}
        return [with_checksum(f"{self.base}/{name.rsplit('/', 1)[-1]}", "md5", md5[name]) for name in sorted(md5)]

    def _manifest(self) -> str | None:
        url = f"{self.base}/{MANIFEST}"
        if self.base.startswith(("http:", "https:")):
            try:
                return HttpClient(self.manners).fetch(url).body.decode("utf-8", "replace")
            except DownloadError as error:
                if error.status == 404:
                    return None
                raise
        system, inner = file_system(url, self.storage_options)
        try:
            with system.open(inner, "rb") as opened:
                return str(opened.read().decode("utf-8", "replace"))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DownloadError(url, f"{error} (a requester-pays bucket: AWS credentials are required)") from error

    def _directory(self) -> list[str]:
        if self.base.startswith(("http:", "https:")):
            page = HttpClient(self.manners).fetch(f"{self.base}/").body.decode("utf-8", "replace")
            return [urljoin(f"{self.base}/", link) for link in _LINK.findall(page)]
        system, inner = file_system(self.base, self.storage_options)
        names = [str(name).rsplit("/", 1)[-1] for name in system.ls(inner, detail=False)]
        return [f"{self.base}/{name}" for name in names if name.endswith(".tar")]


class ArxivDownloader(ChecksumDownloader):
    """Downloads archives from a bucket or a mirror, verifies them, and resumes partial downloads."""

    def __init__(
        self,
        download_dir: str,
        verbose: bool = False,
        manners: Manners | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(download_dir, verbose, manners)
        self.storage_options = dict(storage_options or {})

    def fetch(self, url: str) -> str:
        if url.startswith(("http:", "https:")):
            return super().fetch(url)
        path = Path(self.path_of(url))
        if not has_content(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._download_object(url, path.with_name(f"{path.name}.draft"), path)
        return str(path)

    def _download_object(self, url: str, draft: Path, path: Path) -> None:
        try:
            ObjectDownloader(str(draft.parent), False, self.storage_options)._download_to_path(
                without_fragment(url), str(draft)
            )
        except OSError as error:
            raise DownloadError(url, f"{type(error).__name__}: {error}", transient=True) from error
        checksum = self.checksum(url)
        if checksum and checksum.startswith("md5:"):
            with draft.open("rb") as opened:
                actual = hashlib.file_digest(opened, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            if f"md5:{actual}" != checksum:
                draft.unlink()
                raise DownloadError(url, f"the md5 is {actual}, expected {checksum[4:]}: download it again")
        draft.replace(path)


class ArxivIterator(DocumentIterator):
    """Yields the papers of an archive: their id, and their source files as a JSON object from name to content.

    `log_frequency` has no effect; it is accepted for scripts written for NeMo Curator.
    """

    def __init__(self, log_frequency: int = 1000) -> None:
        self.log_frequency = log_frequency

    def iterate(self, file_path: str) -> Iterator[dict[str, Any] | BadRecord]:
        source = file_path.rsplit("/", 1)[-1]
        for paper in read_papers(file_path):
            if isinstance(paper, BadRecord):
                yield paper
                continue
            yield {
                "id": paper_id(paper.name),
                "source_id": source,
                "content": orjson.dumps(paper.files).decode(),
                "kind": paper.kind,
                POSITION: paper.position,
            }

    def output_columns(self) -> list[str]:
        return ["id", "source_id", "content", "kind"]


class ArxivExtractor(DocumentExtractor):
    """Extracts the text of papers."""

    def __init__(self, math: str = KEEP, captions: bool = True) -> None:
        self.math, self.captions = math, captions
        self._cleaner = LatexCleaner(math, captions)

    def extract(self, record: dict[str, Any]) -> dict[str, Any] | None:
        if record.get("kind", SOURCE) != SOURCE:
            self.count(f"{record['kind']}_only")
            return None
        text = self._cleaner.clean(orjson.loads(record["content"]))
        if not text:
            self.count("empty_papers")
            return None
        return {"text": text, "id": record["id"], "source_id": record["source_id"]}

    def input_columns(self) -> list[str]:
        return ["id", "source_id", "content"]

    def output_columns(self) -> list[str]:
        return ["text", "id", "source_id"]


@dataclass(eq=False, repr=False)
class ArxivDownloadExtractStage(CompositeStage[EmptyTask, DocumentBatch]):
    """Papers of arXiv: text, id, source_id and file_name.

    `log_frequency` and `verbose` have no effect; they are accepted for scripts written for NeMo Curator.
    """

    download_dir: str = "./arxiv_downloads"
    url_limit: int | None = None
    record_limit: int | None = None
    add_filename_column: bool | str = True
    log_frequency: int = 1000
    verbose: bool = False
    base: str = BUCKET
    storage_options: dict[str, Any] | None = None
    math: str = KEEP
    captions: bool = True
    manners: Manners | None = None

    def __post_init__(self) -> None:
        self.decompose()

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        urls = ArxivUrlGenerator(self.base, self.storage_options, self.manners)
        return DocumentDownloadExtractStage(
            url_generator=urls,
            downloader=ArxivDownloader(self.download_dir, self.verbose, urls.manners, urls.storage_options),
            iterator=ArxivIterator(self.log_frequency),
            extractor=ArxivExtractor(self.math, self.captions),
            url_limit=self.url_limit,
            record_limit=self.record_limit,
            add_filename_column=self.add_filename_column,
        ).decompose()


def requester_pays_options(base: str, storage_options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options of fsspec with "requester pays" set for S3."""
    options = dict(storage_options or {})
    return {"requester_pays": True, **options} if base.startswith(("s3:", "s3a:")) else options


def paper_id(name: str) -> str:
    """`0001/hep-th0001001.gz` is hep-th/0001001; `2401/2401.00001.gz` is 2401.00001."""
    stem = re.sub(r"\.(?:gz|pdf|tar|tex)$", "", name.rsplit("/", 1)[-1])
    old = _OLD.fullmatch(stem)
    return f"{old[1]}/{old[2]}" if old else stem
