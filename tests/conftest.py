"""Runs are quiet in tests, and a busy machine is no reason for a test to fail."""

import os

from hypothesis import HealthCheck, settings

os.environ["GRISTMILL_PROGRESS"] = "off"

settings.register_profile("gristmill", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gristmill")
