"""Running a plan: the worker and how it isolates failures, the flow of tasks between groups, the scheduling policy, one
segment after the other."""
