"""What images, audio and video share. A modality subclasses what is here; CONTRIBUTING.md, "Add a modality", shows how.

batch.py              DocumentBatch, and SampleBatch, which says what is particular to a modality
sample_files.py       a sample: an encoded object and the files beside it, and the columns they become
read.py, write.py     WebDataset archives, directories of files
read_tables.py        Parquet files with encoded bytes or URLs
shard_formats.py      how rows become archives and directories
decode.py             decoding the rows of a batch once; rows that cannot be decoded are set aside
filters.py, score.py  filters, and the stages that run them
model_stages.py       stages that run a model; columns of embeddings
download.py           from a column of URLs to a column of bytes
to_documents.py       from samples to documents
buffer_pool.py        memory for decoded objects that is used again
"""
