"""Policies that choose the draft width, set against the fixed widths that they choose from."""

from kvtop_lib.policies.chosen import shares, why
from kvtop_lib.policies.compare import best_fixed, by_load, over_range, range_means
from kvtop_lib.policies.document import Findings, find, write_policies
from kvtop_lib.policies.noise import Noise
from kvtop_lib.policies.roles import Role, roles
from kvtop_lib.policies.words import Claim, claim

__all__ = [
    "Claim",
    "Findings",
    "Noise",
    "Role",
    "best_fixed",
    "by_load",
    "claim",
    "find",
    "over_range",
    "range_means",
    "roles",
    "shares",
    "why",
    "write_policies",
]
