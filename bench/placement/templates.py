"""Fills the templates of pages, `pages/NAME.md`, in which `$name` stands for something measured."""

from collections.abc import Iterable
from pathlib import Path
from string import Template
from typing import Final

PAGES: Final = Path(__file__).parent / "pages"


def filled(name: str, **measured: str | Iterable[str]) -> str:
    """The page of a template. `measured`: name -> text or lines."""
    texts = {key: each if isinstance(each, str) else "\n".join(each) for key, each in measured.items()}
    return Template((PAGES / name).read_text(encoding="utf-8")).substitute(texts).rstrip() + "\n"


def write_page(path: Path, **measured: str | Iterable[str]) -> None:
    """Write a page from the template that has the name of the page's file."""
    path.write_text(filled(path.name, **measured), encoding="utf-8")
