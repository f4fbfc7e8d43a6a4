"""The configuration files that show the metrics of runs in Prometheus and Grafana.

prometheus.yml                                  what Prometheus asks, and how often
grafana/dashboards/gristmill.json               the dashboard; it can also be imported by hand
grafana/provisioning/datasources/gristmill.yml  where Grafana finds Prometheus
grafana/provisioning/dashboards/gristmill.yml   where Grafana finds the dashboard
"""

from __future__ import annotations

import json
from typing import Any

import yaml

SCRAPE_S = 5
DATASOURCE = "gristmill-prometheus"
_WIDTH, _HEIGHT = 12, 8

PANELS: tuple[tuple[str, str, str, str], ...] = (
    ("Rows per second", "ops", "{{stage}}", 'gristmill_stage_rows_per_second{pipeline=~"$pipeline"}'),
    (
        "Rows dropped per second",
        "ops",
        "{{stage}}",
        'rate(gristmill_stage_rows_dropped_total{pipeline=~"$pipeline"}[1m])',
    ),
    ("Rows in", "short", "{{stage}}", 'gristmill_stage_rows_in_total{pipeline=~"$pipeline"}'),
    ("Rows out", "short", "{{stage}}", 'gristmill_stage_rows_out_total{pipeline=~"$pipeline"}'),
    ("Quarantined records", "short", "{{stage}}", 'gristmill_stage_rows_quarantined_total{pipeline=~"$pipeline"}'),
    (
        "Busy workers per stage",
        "short",
        "{{stage}}",
        'rate(gristmill_stage_seconds_total{pipeline=~"$pipeline"}[1m])',
    ),
    ("Busy share of workers", "percentunit", "{{pool}}", 'gristmill_pool_busy_share{pipeline=~"$pipeline"}'),
    ("Workers", "short", "{{pool}}: {{state}}", 'gristmill_pool_workers{pipeline=~"$pipeline"}'),
    ("Queued bytes", "bytes", "{{pool}}", 'gristmill_pool_queued_bytes{pipeline=~"$pipeline"}'),
    ("Queued tasks", "short", "{{pool}}", 'gristmill_pool_queued_tasks{pipeline=~"$pipeline"}'),
    ("Sources done", "short", "{{pipeline}}", 'gristmill_sources_done_total{pipeline=~"$pipeline"}'),
    ("Sources listed", "short", "{{pipeline}}", 'gristmill_sources_seen_total{pipeline=~"$pipeline"}'),
    ("Time since the start", "s", "{{pipeline}}", 'gristmill_run_seconds{pipeline=~"$pipeline"}'),
    ("Time left", "s", "{{pipeline}}", 'gristmill_run_seconds_left{pipeline=~"$pipeline"}'),
)
"""Title, unit, legend and query of each panel."""


def grafana_files(target: str, prometheus: str, on_ray: bool = False) -> dict[str, str]:
    """What to write, by name. `target` is the endpoint of runs, `prometheus` where Grafana finds Prometheus; with
    `on_ray` the dashboard shows what Ray exports."""
    source = {"name": DATASOURCE, "uid": DATASOURCE, "type": "prometheus", "access": "proxy", "url": prometheus}
    place = {"path": "/var/lib/grafana/dashboards"}
    provider = {"name": "gristmill", "type": "file", "options": place}
    return {
        "prometheus.yml": _yaml(scrape_config(target)),
        "grafana/dashboards/gristmill.json": json.dumps(dashboard(on_ray), indent=1) + "\n",
        "grafana/provisioning/datasources/gristmill.yml": _yaml({"apiVersion": 1, "datasources": [source]}),
        "grafana/provisioning/dashboards/gristmill.yml": _yaml({"apiVersion": 1, "providers": [provider]}),
    }


def scrape_config(target: str) -> dict[str, Any]:
    job = {"job_name": "gristmill", "static_configs": [{"targets": [target]}]}
    return {"global": {"scrape_interval": f"{SCRAPE_S}s"}, "scrape_configs": [job]}


def dashboard(on_ray: bool = False) -> dict[str, Any]:
    """The dashboard, as Grafana imports it."""
    origin = {"type": "prometheus", "uid": DATASOURCE}
    query = f"label_values({_metric_name('gristmill_run_seconds', on_ray)}, pipeline)"
    pipeline = {
        "name": "pipeline",
        "type": "query",
        "datasource": origin,
        "query": {"query": query, "refId": "pipeline"},
        "definition": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }
    return {
        "uid": "gristmill-ray" if on_ray else "gristmill",
        "title": "Gristmill on Ray" if on_ray else "Gristmill",
        "tags": ["gristmill"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": f"{SCRAPE_S}s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [pipeline]},
        "panels": [_panel(index, *panel, origin, on_ray) for index, panel in enumerate(PANELS)],
    }


def _panel(
    index: int, title: str, unit: str, legend: str, query: str, origin: dict[str, str], on_ray: bool
) -> dict[str, Any]:
    return {
        "id": index + 1,
        "title": title,
        "type": "timeseries",
        "datasource": origin,
        "gridPos": {"x": index % 2 * _WIDTH, "y": index // 2 * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "table", "placement": "right", "calcs": ["lastNotNull"]}},
        "targets": [{"refId": "A", "datasource": origin, "expr": _metric_name(query, on_ray), "legendFormat": legend}],
    }


def _metric_name(query: str, on_ray: bool) -> str:
    """Ray puts its own name before that of each metric."""
    return query.replace("gristmill_", "ray_gristmill_", 1) if on_ray else query


def _yaml(content: dict[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False)
