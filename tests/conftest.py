"""Its place makes helpers in this folder (``scripted_server``) importable from every test."""
