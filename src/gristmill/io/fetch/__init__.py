"""Fetch over HTTP: limits per host, retries, redirects, and downloads that resume where they stopped."""
