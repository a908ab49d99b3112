"""The engine: one server of one arm, from its command line to its last process."""

from kvtop_lib.engine.command import SERVED_NAME, Command, server_command
from kvtop_lib.engine.deployment import deployment
from kvtop_lib.engine.lossless import Comparison, Output, compare, greedy_outputs
from kvtop_lib.engine.server import Server

__all__ = [
    "SERVED_NAME",
    "Command",
    "Comparison",
    "Output",
    "Server",
    "compare",
    "deployment",
    "greedy_outputs",
    "server_command",
]
