"""Runs are quiet in tests: no progress display."""

import os

os.environ["GRISTMILL_PROGRESS"] = "off"
