"""Runs that another engine schedules: Ray Data and Xenna, the coordinator and delivery tracking that make them exactly-once, and the guard process that isolates faults inside their actors."""
