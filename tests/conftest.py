"""Runs are quiet in tests: no progress display."""

import os

os.environ["GRISTMILL_PROGRESS"] = "off"

from gristmill.core.executor import Silent, set_default
import gristmill
set_default("observer", Silent)
