"""Web pages: Common Crawl, WARC files and lists of URLs, and the text of pages."""
