"""Tasks, stages, pipelines, planning and running. It imports no other package of Gristmill."""

VERSION = "0.1.0"
