"""Documents that contain items of evaluation sets: reading the sets, word n-gram overlap, and dropping, cutting or marking."""
