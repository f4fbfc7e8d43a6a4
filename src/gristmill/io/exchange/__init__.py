"""Exchanges move rows between the segments of a pipeline by partition; sort, group and verdict stages use them."""
