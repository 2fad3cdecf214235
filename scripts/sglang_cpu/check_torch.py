"""Reads the report of `pip install --dry-run --report - torch==...` and says whether that torch is a CPU build.

A CUDA build requires CUDA packages on Linux; a CPU build says so in its version, or requires none.
"""

import json
import sys

HELP = (
    "torch {version} of the configured package index is a CUDA build of several gigabytes; SGLang on a CPU needs a CPU "
    "build. Name an index that has one, for instance PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu, or a "
    "folder with its wheel: PIP_FIND_LINKS=/path/to/wheels"
)


def main() -> int:
    """0 for a CPU build; else 1 and what to do."""
    report = sys.stdin.read()
    if not report.strip():
        return 1  # pip found no torch at all, and has said so
    metadata = json.loads(report)["install"][0]["metadata"]
    version = metadata["version"]
    cuda = [name for name in metadata.get("requires_dist", []) if name.startswith(("nvidia-", "cuda-"))]
    if "+cpu" in version or not cuda:
        return 0
    print(HELP.format(version=version), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
