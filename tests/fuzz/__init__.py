"""`make fuzz`: damaged files through every reader, and random bytes through the kernels."""
