"""Runs `warmroute conform` against servers that are installed from PyPI, and writes docs/spec/results.md.

    python -m bench.conformity [--envs DIR] [--only NAME ...] [--json DIR]

Run it with `.venv/bin/python` from the root. Each server is installed into a separate environment below `--envs`
(.conformity), SGLang by `scripts/sglang install`. The models have random weights, since the quality of answers is not
measured. The page names servers that could not be installed or started, with the last lines of their output.

The servers run one after the other: about 15 minutes on two cores, with 6 GB of disk. `subjects` has the commands.
"""

import argparse
import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.conformity.page import page, scored_of
from bench.conformity.subjects import GROUPS, Failed, Subject, Workplace
from warmroute_cli.main import main as warmroute

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/spec/results.md"


def main() -> int:
    """Install, start and score the servers, and write the page. Returns 0 if at least five servers were scored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=Path, default=ROOT / ".conformity")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of groups: " + ", ".join(GROUPS))
    parser.add_argument("--json", type=Path, metavar="DIR", help="keep the results, and read those of other runs there")
    arguments = parser.parse_args()
    kept = arguments.json or arguments.envs / "results"
    runs = arguments.envs / "run"
    for folder in (kept, runs):
        folder.mkdir(parents=True, exist_ok=True)
    for name, group in GROUPS.items():
        if arguments.only and name not in arguments.only:
            continue
        place = Workplace(ROOT, arguments.envs, runs)
        with contextlib.ExitStack() as stack, _said(name, kept):
            stack.callback(place.stop)
            for subject, start in group(place):
                with _said(subject, kept):
                    _score(start(), kept)
    results = [json.loads(file.read_text()) for file in sorted(kept.glob("*.json"))]
    PAGE.write_text(page(results), encoding="utf-8")
    return 0 if len(scored_of(results)) >= 5 else 1


@contextlib.contextmanager
def _said(name: str, kept: Path) -> Iterator[None]:
    """Note why a server, or what a group of servers needs, did not start, and continue with the others."""
    note = kept / f"{name}.failed.json"
    try:
        yield
    except (Failed, OSError, subprocess.SubprocessError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        note.write_text(json.dumps({"name": name, "why": str(error)[:600]}))
    else:
        note.unlink(missing_ok=True)


def _score(subject: Subject, kept: Path) -> None:
    words = ["conform", subject.url, "--json", "--turns", "3", "--api", *subject.apis, "--model", subject.model]
    for option, file in zip(("--key-file", "--other-key-file"), subject.keys, strict=False):
        words += [option, str(file)]
    if subject.price:
        words += ["--price", subject.price]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = warmroute(words)
    if code == 2:
        raise Failed(f"{subject.name} was not scored")
    found = json.loads(out.getvalue())
    found |= {"name": subject.name, "version": subject.version, "how": subject.how}
    (kept / f"{subject.order:02d}-{subject.file}.json").write_text(json.dumps(found, indent=1))
    print(f"{subject.name}: {'conforms' if code == 0 else 'something is red'}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
