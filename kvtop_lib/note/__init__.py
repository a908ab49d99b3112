"""The published note: one HTML file from records, with no number typed by hand."""

from kvtop_lib.note.article import Article
from kvtop_lib.note.page import render_comparison, render_note
from kvtop_lib.note.planned import standing

__all__ = ["Article", "render_comparison", "render_note", "standing"]
