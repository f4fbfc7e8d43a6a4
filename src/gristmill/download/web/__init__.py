"""Web pages: Common Crawl, WARC files and lists of addresses, and the text of the pages in them."""
