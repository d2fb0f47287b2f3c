"""A child process that does nothing until SIGTERM ends it."""

from __future__ import annotations

import signal

signal.pause()
