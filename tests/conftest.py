"""Its place makes helpers in this folder (``scripted_server``) importable from every test."""

from hypothesis import settings

settings.register_profile("kvtop", deadline=None)  # no test fails because a machine is busy
settings.load_profile("kvtop")
