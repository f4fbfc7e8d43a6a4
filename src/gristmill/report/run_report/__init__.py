"""The report of a run, written when it ends: report.json, report.html, and the dataset card made from them."""
