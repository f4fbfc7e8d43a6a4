"""Arrow tables and columns: to and from rows, built from buffers, hashed into partitions. Knows no tasks or stages."""
