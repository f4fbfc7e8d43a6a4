"""Personal data in documents: finders for each kind of data, and the stage, modifier and filter that redact, hash or drop what they find."""
