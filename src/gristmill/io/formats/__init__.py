"""From bytes to Arrow tables: one module per input format, and what the formats share."""
