"""The rows behind the pages: which files hold them, reading them at any position, searching and sorting them."""
