"""Wikipedia and other MediaWiki dumps: finding, reading and turning wikitext into plain text."""
