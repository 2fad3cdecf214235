"""What only a compiled build can be asked. `scripts/compiled-tests` makes one and runs these and others on it."""

from warmroute_proxy import COMPILED

collect_ignore_glob = [] if COMPILED else ["test_*"]
