"""Personal data in documents: what finds it, and the stage, modifier and filter that redact, hash or drop it."""
