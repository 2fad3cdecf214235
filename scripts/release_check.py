#!/usr/bin/env python3
"""Checks what `scripts/release` has built: names, versions, the content of each file, and links of the README.

    scripts/release_check.py DIST [TAG]

If a tag is given, the tag and the changelog must name this version, too. An error is reported for a wheel that should
be compiled and is not, and for a pure wheel that has extensions.
"""

import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
VERSION: Final = re.findall(
    r'^VERSION: Final = "(.+)"$', (ROOT / "sdk/warmroute/contract/version.py").read_text(), re.MULTILINE
)[0]
PACKAGES: Final = ("warmroute", "warmroute_proxy", "warmroute_cli", "warmroute_backend", "warmroute_lab")
NATIVE: Final = "warmroute_proxy/native__mypyc"
MAX_WHEEL_BYTES: Final = {"pure": 2_500_000, "compiled": 12_000_000}


def wheel_problems(path: Path, kind: str) -> Iterator[str]:
    """What is wrong with a wheel that should be `pure` or `compiled`."""
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        metadata = wheel.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
    native = [name for name in names if name.startswith(NATIVE) and name.endswith(".so")]
    if kind == "compiled" and not native:
        yield "it should be compiled, and has no extension"
    if kind == "pure" and any(name.endswith(".so") for name in names):
        yield "it should be pure, and has extensions"
    if kind == "compiled" and "linux_" not in path.name.replace("manylinux_", "linux_"):
        yield "its name has no platform"
    if path.stat().st_size > MAX_WHEEL_BYTES[kind]:
        yield f"{path.stat().st_size:,} bytes are more than {MAX_WHEEL_BYTES[kind]:,}"
    for package in PACKAGES:
        if f"{package}/py.typed" not in names:
            yield f"{package} has no py.typed"
    if f"\nVersion: {VERSION}\n" not in metadata:
        yield f"its version is not {VERSION}"
    for link in re.findall(r"\]\((?!https?://|#)([^)]+)\)", metadata):
        yield f"its README has a link into the checkout: {link}"


def sdist_problems(path: Path) -> Iterator[str]:
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in ("pyproject.toml", "hatch_build.py", "scripts/compile.py", "scripts/slots.h", "README.md", "LICENSE"):
        if needed not in names:
            yield f"it lacks {needed}"
    if any(name.startswith(("tests/", "docs/")) for name in names):
        yield "it has tests or docs"


def version_problems(changelog: str, citation: str, *, tagged: bool) -> Iterator[str]:
    """Problems of files that do not name the version. `tagged`: whether the changelog needs the release's day."""
    heading = re.search(rf"^## \[{re.escape(VERSION)}\] - (.+)$", changelog, re.MULTILINE)
    if heading is None:
        yield f"CHANGELOG.md has no part for {VERSION}"
    elif tagged and not re.fullmatch(r"\d{4}-\d\d-\d\d", heading[1]):
        yield f"CHANGELOG.md says {heading[1]!r} where the day of {VERSION} belongs"
    if f"\nversion: {VERSION}\n" not in citation:
        yield f"CITATION.cff has another version than {VERSION}"


def problems(dist: Path) -> Iterator[str]:
    wheels = sorted(dist.glob("*.whl"))
    pure = [path for path in wheels if path.name.endswith("-py3-none-any.whl")]
    kinds = [(path, "pure" if path in pure else "compiled") for path in wheels]
    if len(pure) != 1 or len(wheels) < 2:
        yield f"expected one pure and at least one compiled wheel, found {[path.name for path in wheels]}"
    for path, kind in kinds:
        yield from (f"{path.name}: {each}" for each in wheel_problems(path, kind))
    sdists = sorted(dist.glob("*.tar.gz"))
    if [path.name for path in sdists] != [f"warmroute-{VERSION}.tar.gz"]:
        yield f"there should be one sdist, and there is: {[path.name for path in sdists]}"
    for path in sdists:
        yield from (f"{path.name}: {each}" for each in sdist_problems(path))


def main() -> int:
    if len(sys.argv) not in {2, 3}:
        sys.exit("usage: scripts/release_check.py DIST [TAG]")
    tags = sys.argv[2:]
    found = list(problems(Path(sys.argv[1])))
    texts = ((ROOT / name).read_text() for name in ("CHANGELOG.md", "CITATION.cff"))
    found += version_problems(*texts, tagged=bool(tags))
    found += [f"the tag {tag} is not v{VERSION}" for tag in tags if tag != f"v{VERSION}"]
    for each in found:
        print(each, file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
