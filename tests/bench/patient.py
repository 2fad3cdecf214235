"""A proxy with deadlines that no machine reaches, for tests.

In tests, the proxy's engines run in the process of the load, which may be busy. Measurements use the normal deadlines.
"""

from dataclasses import replace

from bench.proxies import ROOT, Fleet, Place, Proxy, Start
from tests.subjects.patient import MODULE


def patient(proxy: Proxy) -> Proxy:
    """The proxy, which must be warmroute's, with deadlines that no machine reaches."""

    def start(place: Place, fleet: Fleet) -> Start:
        made = proxy.start(place, fleet)
        python, _, _, *arguments = made.command
        variables = {**made.variables, "PYTHONPATH": f"{ROOT}:{made.variables['PYTHONPATH']}"}
        return Start([python, "-m", MODULE, *arguments], variables)

    return replace(proxy, start=start)
