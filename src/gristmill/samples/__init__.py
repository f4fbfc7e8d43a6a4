"""What images, audio and video share: samples and their sidecar files, shards, tables of encoded bytes, base stages."""
