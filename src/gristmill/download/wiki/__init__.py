"""Wikipedia: downloading MediaWiki dumps, reading them, and turning wikitext into plain text."""
