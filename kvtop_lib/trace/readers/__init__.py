"""Readers of recorded traces; a format is found by content, never by a file's name.

`formats` knows all of them; it is imported where it is used, since `sessions_jsonl`, which is one
of the formats, builds on the fields and rows of this folder.
"""
