"""What similarity is estimated by: MinHash signatures, LSH bands, sketches of documents, and how well a search by bands finds similar pairs."""
