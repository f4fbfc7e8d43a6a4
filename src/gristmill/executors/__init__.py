"""Executors, which run plans. All pass the same conformance suite."""
