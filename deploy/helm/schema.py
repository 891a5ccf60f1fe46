#!/usr/bin/env python3
"""Writes the router's settings into the chart's values.schema.json, so that a wrong one is refused at once.

    python deploy/helm/schema.py            writes
    python deploy/helm/schema.py --check    exit code 1 where it is not what it would write

Run it where a setting was added or changed; `make test` tells.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from router.settings import Settings

SCHEMA: Final = Path(__file__).parent / "boomerang" / "values.schema.json"
OF_THE_CHART: Final = frozenset(
    {
        "host",
        "port",
        "admin_token",
        "admin_token_file",
        "engine_api_key_file",
        "store_ca_file",
        "store_password_file",
    }
)
"""Set by the chart itself: where a pod listens, and secrets, which no ConfigMap may hold."""
NOT_STANDARD: Final = frozenset({"title", "default", "gt", "ge", "lt", "le", "format", "writeOnly"})


def settings() -> dict[str, Any]:
    """JSON schema of the value ``config``."""
    fields = Settings.model_json_schema()["properties"]
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: _of(field) for name, field in fields.items() if name not in OF_THE_CHART},
    }


def _of(field: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in field.items() if name not in NOT_STANDARD}
    if "anyOf" in kept:
        # Helm takes a null as "not given"; "none" is how a limit is taken away.
        kept["anyOf"] = [
            {"const": "none"} if way.get("type") == "null" else _of(way) for way in kept["anyOf"]
        ]
    return kept


def written() -> str:
    """The whole of the file, with the settings as they are now."""
    schema = json.loads(SCHEMA.read_text())
    schema["properties"]["config"] = settings()
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    """The exit code."""
    wanted = written()
    if "--check" in sys.argv[1:]:
        return 0 if wanted == SCHEMA.read_text() else 1
    SCHEMA.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
