"""Runs that another engine schedules: Ray Data, Xenna, and what makes them count every task exactly once."""
