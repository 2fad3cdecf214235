"""`scripts/integrations newest`: the newest versions of programs and libraries, and what they send that pins do not.

    python -m scripts.newest pins FOLDER             pins with the newest versions, as npm and pip know them
    python -m scripts.newest report SHAPES RESULTS MOVED   what changed, as Markdown

It asks npm and pip for the packages that are pinned, and for no others.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

ROOT: Final = Path(__file__).resolve().parents[2]
PINS: Final = ROOT / "scripts" / "integrations_pins"
SHAPES: Final = PINS / "shapes.json"
TIMEOUT_S: Final = 60.0
MAX_NAMES: Final = 40
"""That are shown of one program."""

_PIN: Final = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(?P<extras>\[[^]]*\])?==(?P<version>\S+)$")


def newest_of_npm(package: str) -> str:
    """The newest version of a package of npm; its reason, where it is not kept any more, is printed."""
    found = _asked("npm", "view", package, "version", "deprecated", "--json")
    answer = json.loads(found or '""')
    if isinstance(answer, dict):
        if answer.get("deprecated"):
            print(f"{package}: {answer['deprecated']}", file=sys.stderr)
        return str(answer.get("version", ""))
    return str(answer)


def newest_of_pip(package: str) -> str:
    """The newest version of a package of PyPI."""
    found = re.search(r"\(([^)]+)\)", _asked(sys.executable, "-m", "pip", "index", "versions", package))
    return found[1] if found else ""


def _asked(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"{command[0]}: {error}", file=sys.stderr)
        return ""
    return done.stdout if done.returncode == 0 else ""


def write_pins(
    folder: Path, of_npm: Callable[[str], str] = newest_of_npm, of_pip: Callable[[str], str] = newest_of_pip
) -> list[tuple[str, str, str]]:
    """Write the pins with the newest versions; what is not found keeps its own. Returns package, pinned and newest."""
    moved: list[tuple[str, str, str]] = []
    for file in sorted(PINS.rglob("*")):
        to = folder / file.relative_to(PINS)
        if file.name == "package.json":
            package = json.loads(file.read_text())
            for name, version in package["dependencies"].items():
                newest = version if name == "node" else of_npm(name) or version
                package["dependencies"][name] = newest
                moved.append((name, version, newest))
            _write(to, json.dumps(package, indent=2) + "\n")
        elif file.suffix == ".txt":
            _write(to, "".join(f"{line}\n" for line in _newest_lines(file, of_pip, moved)))
    return moved


def _newest_lines(file: Path, of_pip: Callable[[str], str], moved: list[tuple[str, str, str]]) -> Iterator[str]:
    for line in file.read_text().splitlines():
        pin = _PIN.match(line)
        if pin is None:
            yield line
            continue
        name, extras, version = pin["name"], pin["extras"] or "", pin["version"]
        newest = of_pip(name) or version
        moved.append((name, version, newest))
        yield f"{name}{extras}>={version}"  # the newest that fits the others of its environment


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def new_names(known: Mapping[str, list[str]], found: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """What each program sends that it has not sent at its pin, by name."""
    return {
        program: fresh for program, names in found.items() if (fresh := sorted({*names} - {*known.get(program, [])}))
    }


def report(shapes: Mapping[str, Any], results: Path, moved: list[tuple[str, str, str]]) -> Iterator[str]:
    """The lines of a report. `shapes`: program -> `names`, `hit` and `ideal`."""
    yield f"Newest versions of {datetime.now(UTC):%d %B %Y}."
    yield from ("", "| package | pinned | newest |", "|---|---|---|")
    yield from (f"| {name} | {old} | {new} |" for name, old, new in sorted(set(moved)) if old != new)
    known = json.loads(SHAPES.read_text()) if SHAPES.exists() else {}
    yield from ("", "| program | hit | ideal | never sent before |", "|---|--:|--:|---|")
    fresh = new_names(
        {name: each["names"] for name, each in known.items()}, {name: each["names"] for name, each in shapes.items()}
    )
    for name, each in shapes.items():
        names = fresh.get(name, []) if name in known else ["(nothing is known of the pinned one)"]
        shown = ", ".join(f"`{one}`" for one in names[:MAX_NAMES]) + (", ..." if len(names) > MAX_NAMES else "")
        yield f"| {name} | {each['hit']:.1%} | {each['ideal']:.1%} | {shown} |"
    failures = list(_failures(results))
    yield from ("", f"{len(failures)} tests failed{':' if failures else '.'}", "")
    yield from (f"- `{name}`: {why}" for name, why in failures)


def _failures(results: Path) -> Iterator[tuple[str, str]]:
    """The tests that failed, by pytest's files of results in a folder."""
    files = sorted(results.glob("*.xml"))
    if not files:
        yield "pytest", "it has left no results"
    for case in (case for file in files for case in ET.parse(file).iter("testcase")):
        for bad in (*case.findall("failure"), *case.findall("error")):
            why = (bad.get("message") or "").strip().splitlines() or [""]
            yield str(case.get("name")), why[0][:200]


def main(words: list[str]) -> int:
    if words[:1] == ["pins"] and len(words) == 2:
        folder = Path(words[-1])
        moved = write_pins(folder)
        _write(folder / "moved.json", json.dumps(moved))
        return 0
    if words[:1] == ["report"] and len(words) == 4:
        shapes, results, versions = map(Path, words[1:])
        moved = [(name, old, new) for name, old, new in json.loads(versions.read_text())]
        print("\n".join(report(json.loads(shapes.read_text()) if shapes.exists() else {}, results, moved)))
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
