"""Records a stream of made-up calls of a router, or plays such a record back, in the build that it finds.

python -m tests.compiled.decisions record PATH SEED | python -m tests.compiled.decisions verify PATH
"""

import random
import sys
from pathlib import Path

from tests.property.test_decision_record import OPS, recorded

from warmroute_lab.replay.record import verify
from warmroute_proxy import COMPILED

CALLS = 12_000
"""With a turn in a quarter of them."""


def main() -> None:
    """The command line; says which build it was, and of a playback what came of it."""
    print("compiled" if COMPILED else "sources")
    if sys.argv[1] == "record":
        some = random.Random(int(sys.argv[3]))
        calls = [(some.choice(OPS), some.randrange(64), some.randrange(4)) for _ in range(CALLS)]
        Path(sys.argv[2]).write_bytes(recorded(calls))
    else:
        verdict = verify(Path(sys.argv[2]))
        print(verdict.decisions, verdict.differing, verdict.first_difference)


if __name__ == "__main__":
    main()
