"""Who speaks: embeddings of voices, and which parts of a recording are of one."""
