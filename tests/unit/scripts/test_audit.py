"""`scripts/audit.py` fails for a known vulnerability, and says what could not be audited."""

from typing import Any

from scripts.audit import verdict

SKIPPED: dict[str, Any] = {"name": "mako", "skip_reason": "not found"}
SOUND: dict[str, Any] = {"name": "idna", "version": "3.20", "vulns": []}
OLD: dict[str, Any] = {"name": "idna", "version": "3.4", "vulns": [{"id": "PYSEC-2024-60", "fix_versions": ["3.7"]}]}
OURS: dict[str, Any] = {"name": "warmroute", "skip_reason": "not found"}


def test_a_known_vulnerability_fails() -> None:
    said, status = verdict([OLD, OURS])
    assert status == 1
    assert "idna 3.4: PYSEC-2024-60, fixed in 3.7" in said


def test_sound_dependencies_pass_and_those_that_were_skipped_are_named() -> None:
    assert verdict([SOUND, SKIPPED, OURS]) == ("audited 1 of 2 dependencies, vulnerabilities: 0; not audited: mako", 0)


def test_advisories_that_cannot_be_reached_are_no_verdict() -> None:
    assert verdict([SKIPPED, OURS]) == ("not audited: PyPI has no advisories for any of 1 dependencies here", 0)
