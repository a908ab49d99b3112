"""A note that sets two runs side by side, arm by arm and load by load."""

from kvtop_lib.note.compared.article import ComparedArticle
from kvtop_lib.note.compared.differences import GROUPS, Difference, check, differences
from kvtop_lib.note.compared.frames import between, welch

__all__ = [
    "GROUPS",
    "ComparedArticle",
    "Difference",
    "between",
    "check",
    "differences",
    "welch",
]
