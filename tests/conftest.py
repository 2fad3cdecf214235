"""What all tests share: how hypothesis searches, and the real SGLang for those that ask for it."""

import os

from hypothesis import HealthCheck, settings

# Shared machines stall: a slow example says nothing about the code. In CI the search is the same each time, so that a
# change is judged by itself; elsewhere it goes on looking.
settings.register_profile(
    "warmroute",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=os.environ.get("CI") == "true",
    print_blob=True,
)
settings.load_profile("warmroute")

pytest_plugins = ["tests.subjects.sglang"]
