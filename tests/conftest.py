"""Its place makes helpers in this folder (``scripted_server``) importable from every test."""

import signal

from hypothesis import HealthCheck, settings

# no test fails because a machine is busy
settings.register_profile("kvtop", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvtop")

# A runner started in the background may ignore Ctrl-C, and its children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
