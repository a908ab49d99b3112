"""The decision: from which load to which an arm is better, worse, or not distinguishable.

It rests on ``results.jsonl`` and ``manifest.json`` alone.
"""

from kvtop_lib.decision.command import server_command_text
from kvtop_lib.decision.document import decide, table, write_decision
from kvtop_lib.decision.judge import RULE, Target, judge, ranges, recommend

__all__ = [
    "RULE",
    "Target",
    "decide",
    "judge",
    "ranges",
    "recommend",
    "server_command_text",
    "table",
    "write_decision",
]
