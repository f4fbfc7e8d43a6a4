"""Clusters of duplicates: connected components, the choice of the kept row, the cluster table, and removal by id."""
