"""Writes the dashboard, dashboards/boomerang.json, from panels.py.

python -m deploy.grafana.dashboard            writes
python -m deploy.grafana.dashboard --check    exit code 1 where the file is not what it would write
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from deploy.grafana.panels import ROWS, Panel

FILE: Final = Path(__file__).parent / "dashboards" / "boomerang.json"
WIDTH: Final = 24
"""Of Grafana's grid, in columns."""


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    options: dict[str, Any]
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.kind == "stat":
        steps: list[dict[str, Any]] = [{"color": "blue", "value": None}]
        if panel.bad_above is not None:
            steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.bad_above}]
        if panel.good_above is not None:
            steps = [{"color": "orange", "value": None}, {"color": "green", "value": panel.good_above}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        options = {
            "colorMode": "value",
            "graphMode": "area",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        }
    else:
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        defaults["custom"] = {
            "fillOpacity": 40 if panel.stacked else 10,
            "lineWidth": 1,
            "showPoints": "never",
            "stacking": stacking,
        }
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "expr": query.expression(),
                "legendFormat": query.legend or "__auto",
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def _panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    y = 0
    for title, panels in ROWS:
        found.append(
            {
                "id": len(found) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
                "panels": [],
            }
        )
        y += 1
        x = 0
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y = 0, y + panel.height
            found.append(_panel(panel, len(found) + 1, x, y))
            x += panel.width
        y += panels[-1].height
    return found


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": name},
        "definition": query,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
        "sort": 1,
    }


def written() -> str:
    """The dashboard, as Grafana imports it."""
    dashboard = {
        "uid": "boomerang",
        "title": "Boomerang",
        "description": "What comes back to prefill, what it saves, and what stands in its way.",
        "tags": ["boomerang", "vllm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                },
                _variable("job", "Job", "label_values(boomerang_build_info, job)"),
                _variable("instance", "Router", 'label_values(boomerang_build_info{job=~"$job"}, instance)'),
            ]
        },
        "annotations": {"list": []},
        "links": [],
        "panels": _panels(),
    }
    return json.dumps(dashboard, indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    """The exit code."""
    if "--check" in sys.argv[1:]:
        return 0 if FILE.read_text() == written() else 1
    FILE.write_text(written())
    return 0


if __name__ == "__main__":
    sys.exit(main())
