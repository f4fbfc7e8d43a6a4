"""What images, audio and video share: samples with their sidecar files, shards, tables of encoded bytes, and base classes for stages that look at decoded objects."""
