"""What people look at when a run is over: its report, what became of a row, what other thresholds would keep."""
