"""A proxy with deadlines that no machine reaches, for tests: its engines are in the process of the load, which is busy.

What measures has the deadlines of users.
"""

from dataclasses import replace

from tests.subjects.patient import MODULE

from bench.proxies import ROOT, Fleet, Place, Proxy, Start


def patient(proxy: Proxy) -> Proxy:
    """The same proxy with such deadlines; `proxy` is one of ours."""

    def start(place: Place, fleet: Fleet) -> Start:
        made = proxy.start(place, fleet)
        python, _, _, *arguments = made.command
        variables = {**made.variables, "PYTHONPATH": f"{ROOT}:{made.variables['PYTHONPATH']}"}
        return Start([python, "-m", MODULE, *arguments], variables)

    return replace(proxy, start=start)
