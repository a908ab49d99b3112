"""KVTop: should MTP drafting be on for an LLM server, and up to which load?

Floors, imports run downward only: ``terms``, ``paths`` -> ``params``, ``store``, ``provenance``
-> ``trace``, ``models``, ``engine`` -> ``replay`` -> ``metrics``, ``stats`` -> ``acceptance``,
``iterations``, ``decision`` -> ``figures``, ``tables`` -> ``note``, ``cli``.
``sglang_plugin`` is a room of its own that lives in the server's process.
"""

__version__ = "0.1.0"
