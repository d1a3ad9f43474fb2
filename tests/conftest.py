"""Fixtures live in `tests/fixtures`, one module a real part."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# A shell that starts the tests in the background has SIGINT ignored, nohup has SIGHUP ignored, and so would every
# process have that the tests start; a handler is not handed down.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

pytest_plugins = [
    "tests.fixtures.browser",
    "tests.fixtures.copies",
    "tests.fixtures.delta",
    "tests.fixtures.disk",
    "tests.fixtures.s3",
    "tests.fixtures.shell",
    "tests.fixtures.spark",
    "tests.fixtures.volume",
    "tests.fixtures.warm",
]

# How long an example takes says how busy the machine is.
settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("here")
