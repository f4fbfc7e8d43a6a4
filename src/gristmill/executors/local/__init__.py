"""Worker processes of this machine: the local executor, its process pool, the zygote that forks workers, and how tasks travel between processes."""
