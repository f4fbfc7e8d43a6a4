"""Arrow tables and columns: from rows and back, built from buffers, hashed into partitions. Knows nothing of tasks or stages."""
