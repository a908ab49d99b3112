"""KVTop: should MTP drafting be on for an LLM server, and up to which load?

Imports run downward only, floor by floor (CONTRIBUTING.md lists them). ``sglang_plugin`` is a room
of its own that lives in the server's process.
"""

__version__ = "0.1.0"
