"""Makes a WebDataset archive of the photographs, as a crawl would find them: with copies, thumbnails, and damage.

    python examples/images/make_data.py [DIRECTORY]

The same bytes each time.
"""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

from PIL import Image, ImageFilter

HERE = Path(__file__).resolve().parent


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "photos.tar", "w") as tar:
        for photo in sorted((HERE / "photos").glob("*.jpg")):
            image = Image.open(photo)
            name = photo.stem.replace("_", " ")
            add(tar, photo.stem, photo.read_bytes(), f"a photograph: {name}")
            smaller = image.resize((image.width * 3 // 4, image.height * 3 // 4), Image.Resampling.LANCZOS)
            add(tar, f"{photo.stem}-copy", encoded(smaller, "webp", quality=60), f"{name}, seen elsewhere", "webp")
            add(tar, f"{photo.stem}-thumb", encoded(image.resize((60, 45)), "png"), f"{name}, tiny", "png")
        cat = Image.open(HERE / "photos" / "chelsea.jpg")
        add(tar, "blurred", encoded(cat.filter(ImageFilter.GaussianBlur(12)), "jpeg"), "a cat, perhaps")
        add(tar, "grey", encoded(Image.new("RGB", (400, 300), "grey"), "jpeg"), "nothing to see")
        add(tar, "broken", (HERE / "photos" / "coffee.jpg").read_bytes()[:20_000], "half a cup of coffee")


def add(tar: tarfile.TarFile, key: str, image: bytes, caption: str, extension: str = "jpg") -> None:
    for ending, data in ((extension, image), ("txt", caption.encode())):
        member = tarfile.TarInfo(f"{key}.{ending}")
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))


def encoded(image: Image.Image, kind: str, **options: int) -> bytes:
    out = io.BytesIO()
    image.convert("RGB").save(out, kind, **options)
    return out.getvalue()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/images-in"))
