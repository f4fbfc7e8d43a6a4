"""The persistent index of rows that earlier runs kept, so that later runs can be deduplicated against them.

`dedup_index.py` is its versions and `index_files.py` its files; `stage_indexes.py` decides what a run is compared
with and adds, `rerun_detection.py` recognises a repeated run, `index_lookup.py` joins, `extend_index.py` adds.
"""
