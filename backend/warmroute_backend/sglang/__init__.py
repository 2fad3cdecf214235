"""The real SGLang on a CPU, as a process. For tests and the demo; a proxy in production never uses it.

Standard library only, so that SGLang's own environment can run it too.

installation    where SGLang is installed
command         the command line and the environment of a server
server          one running SGLang: start, wait, kill, restart
speed           how slow this machine is, and so how long servers may take
"""

from warmroute_backend.sglang.command import Role
from warmroute_backend.sglang.installation import Installation, NotInstalledError, installation
from warmroute_backend.sglang.server import Server, StartError, wait_all

__all__ = ["Installation", "NotInstalledError", "Role", "Server", "StartError", "installation", "wait_all"]
