"""What people look at when a run is over: report.json and report.html."""
