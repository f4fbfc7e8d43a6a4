"""From bytes to Arrow tables: one module for each input format, and what they share (format detection, decompression, blocks of whole lines)."""
