"""`python -m tests.subjects.patient ARGUMENTS OF WARMROUTE`: the command, with deadlines that no machine reaches."""

import sys

from tests.subjects import patience
from warmroute_cli.main import main

if __name__ == "__main__":
    patience.wait()
    sys.exit(main())
