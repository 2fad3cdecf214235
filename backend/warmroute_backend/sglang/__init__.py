"""Runs the real SGLang on a CPU as a process, for tests and the demo. A proxy in production never uses it.

The package needs only the standard library, so that it also runs in the Python environment that has SGLang.
"""

from warmroute_backend.sglang.command import Role
from warmroute_backend.sglang.installation import Installation, NotInstalledError, installation
from warmroute_backend.sglang.server import Server, StartError, wait_all

__all__ = ["Installation", "NotInstalledError", "Role", "Server", "StartError", "installation", "wait_all"]
