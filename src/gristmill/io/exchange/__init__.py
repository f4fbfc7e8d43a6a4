"""Exchanges: rows leave one segment of a pipeline by partition, through shuffle files, and the next segment reads them. External sort, and the stages built on it."""
