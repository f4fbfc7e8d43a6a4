"""Analysis of a finished run: its report, why a row was dropped, what other thresholds would keep."""
