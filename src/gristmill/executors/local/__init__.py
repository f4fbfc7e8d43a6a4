"""Worker processes of this machine: executor, process pool, the zygote that forks workers, transport of tasks."""
