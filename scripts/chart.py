#!/usr/bin/env python3
"""Render a chart as Helm 4 does, without its program: prints JSON. Needs .venv-deploy (scripts/deploy).

    .venv-deploy/bin/python scripts/chart.py CHART NAME NAMESPACE [KEY=VALUE...] < VALUES.json

Status 1 where Helm finds the chart or the values wrong; the reason is on stderr.
"""

import json
import sys

import helm_python as helm


def main() -> int:
    folder, name, namespace, *pairs = sys.argv[1:]
    values = json.load(sys.stdin)
    if pairs:  # as Helm reads --set
        values |= helm.parse_set_string(",".join(pairs))
    try:
        problems = helm.lint(folder)["errors"]
        with helm.Chart.load(folder) as chart:
            chart.validate_schema(values)
            rendered = chart.render(values, name=name, namespace=namespace)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"templates": rendered, "problems": problems}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
