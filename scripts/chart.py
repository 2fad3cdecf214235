#!/usr/bin/env python3
"""Renders a Helm chart to JSON as Helm 4 does, without Helm. Needs .venv-deploy (made by `scripts/deploy`).

    .venv-deploy/bin/python scripts/chart.py CHART NAME NAMESPACE [KEY=VALUE...] < VALUES.json

The exit status is 1 if Helm would refuse the chart or the values; the reason is on stderr.
"""

import json
import sys

import helm_python as helm


def main() -> int:
    folder, name, namespace, *pairs = sys.argv[1:]
    values = json.load(sys.stdin)
    if pairs:  # parsed like Helm's --set
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
