"""Tests of `gristmill.io`."""
