"""Clusters of duplicates: connected components, which row of a cluster is kept, the cluster table, and removal of the rows that it lists."""
