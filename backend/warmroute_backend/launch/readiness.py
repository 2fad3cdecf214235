"""What is looked at before anything is started: ports, programs, the model. Each problem is a sentence."""

import shutil
import socket
from collections.abc import Iterable, Iterator

from warmroute._ports import is_listening, port_owner
from warmroute_backend.launch.program import Program


def unready(programs: Iterable[Program]) -> Iterator[str]:
    """Why these programs cannot be started now."""
    taken: dict[int, str] = {}
    for program in programs:
        if shutil.which(program.command[0]) is None:
            yield f"{program.name}: there is no program {program.command[0]} in PATH: install it, or give its path"
        for what, port in program.ports:
            if port in taken:
                yield f"{program.name} and {taken[port]} both listen on port {port}: change one in the plan"
            elif is_taken(port):
                owner = port_owner(port)
                yield f"{program.name}: port {port} ({what}) is in use{owner}: end that, or change it in the plan"
            taken[port] = program.name


def is_taken(port: int) -> bool:
    """Whether something listens on a port of this machine, on any address."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # no such family here
            continue
        with listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                listener.bind((address, port))
                listener.listen(1)
            except OSError:
                return family == socket.AF_INET or is_listening(port)
    return False
