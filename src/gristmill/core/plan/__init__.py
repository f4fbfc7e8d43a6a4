"""From a pipeline to a plan: decompose composites, check types and columns, fuse stages into groups, cut segments, fit
the plan to an executor. Nothing runs."""
