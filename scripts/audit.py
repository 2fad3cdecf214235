#!/usr/bin/env python3
"""Looks for known vulnerabilities in the packages that `scripts/release` has installed for warmroute's extras.

pip-audit asks PyPI for advisories. If PyPI or its advisories cannot be reached, the script prints a line about it and
exits with status 0.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PIP_AUDIT: Final = ROOT / ".venv-release" / "bin" / "pip-audit"
INSTALLED: Final = ROOT / "build" / "release" / "bill" / "lib"
OURS: Final = "warmroute"

IGNORED: Final[dict[str, str]] = {}
"""Advisories that do not concern warmroute, each with the reason."""


def verdict(report: list[dict[str, Any]]) -> tuple[str, int]:
    """The text to print about a report of pip-audit, and the exit code. `report`: the report's `dependencies`."""
    others = [each for each in report if each["name"] != OURS]
    skipped = [each["name"] for each in others if "skip_reason" in each]
    found = [
        f"{each['name']} {each['version']}: {advisory['id']}, fixed in {', '.join(advisory['fix_versions']) or 'none'}"
        for each in others
        for advisory in each.get("vulns", [])
        if advisory["id"] not in IGNORED
    ]
    if others and len(skipped) == len(others):
        return f"not audited: PyPI has no advisories for any of {len(others)} dependencies here", 0
    summary = f"audited {len(others) - len(skipped)} of {len(others)} dependencies, vulnerabilities: {len(found)}"
    if skipped:
        summary += f"; not audited: {', '.join(skipped)}"
    return "\n".join([*found, summary]), int(bool(found))


def main() -> int:
    places = sorted(INSTALLED.glob("python3.*/site-packages"))
    if not PIP_AUDIT.exists() or not places:
        sys.exit("run scripts/release first")
    command: list[str | Path] = [PIP_AUDIT, "--path", places[0], "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        report = json.loads(done.stdout)["dependencies"]
    except ValueError:
        last = (done.stderr.strip() or "no answer").splitlines()[-1]
        print(f"not audited: PyPI cannot be reached: {last}")
        return 0
    said, status = verdict(report)
    print(said)
    return status


if __name__ == "__main__":
    sys.exit(main())
