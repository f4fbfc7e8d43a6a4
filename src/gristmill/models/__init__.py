"""Models: one small interface over the engines that run them."""
