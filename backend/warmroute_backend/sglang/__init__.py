"""The real SGLang on a CPU, as a process. For tests and the demo; a proxy in production never uses it.

The package needs only the standard library, so SGLang's own environment can run it too.
"""

from warmroute_backend.sglang.command import Role
from warmroute_backend.sglang.installation import Installation, NotInstalledError, installation
from warmroute_backend.sglang.server import Server, StartError, wait_all

__all__ = ["Installation", "NotInstalledError", "Role", "Server", "StartError", "installation", "wait_all"]
