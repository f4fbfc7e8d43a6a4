"""Where plans run. Every executor passes the same conformance suite."""
