"""Tests of `gristmill.io`."""  # noqa: A005
