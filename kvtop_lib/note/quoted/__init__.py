"""Notes of published evidence: numbers of others under the same figures and the same rules."""

from kvtop_lib.note.quoted.article import QuotedArticle
from kvtop_lib.note.quoted.evidence import PREFIX, QuotedEvidence, is_published

__all__ = ["PREFIX", "QuotedArticle", "QuotedEvidence", "is_published"]
