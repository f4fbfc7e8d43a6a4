"""What a run writes down: its directory and ledger, quarantined records, rejected rows, scores, row samples for the
report, and the identity of each stage."""
