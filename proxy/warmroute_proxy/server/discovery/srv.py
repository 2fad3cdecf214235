"""Finds engines by SRV records (RFC 2782): each target and port with the lowest priority is an engine.

Weights are ignored, since placement decides which engine gets a request. An engine's id is its target and port. The DNS
name is queried again when the answer's time to live is over, but not before `interval_s`, nor later than `LONGEST_S`.
"""

import re
from typing import Final

from dns.asyncresolver import Resolver
from dns.exception import DNSException
from dns.nameserver import Do53Nameserver
from dns.rdtypes.IN.SRV import SRV

from warmroute_proxy.server.base.config import DiscoveryConfig
from warmroute_proxy.server.base.config_engines import record_values
from warmroute_proxy.server.base.config_table import shown
from warmroute_proxy.server.discovery.source import MAX_ENGINES, DiscoveredEngines, SourceError

TIMEOUT_S: Final = 5.0
LONGEST_S: Final = 300.0
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")


class Records:
    """The records of one DNS name. `region`: the region of its engines."""

    def __init__(self, config: DiscoveryConfig, region: str) -> None:
        self._config = config
        self._region = region

    async def read(self) -> DiscoveredEngines:
        config = self._config
        try:
            answer = await self._resolver().resolve(config.name, "SRV", lifetime=TIMEOUT_S, search=False)
        except (DNSException, OSError) as error:
            raise SourceError(f"{config.name} cannot be queried: {error}") from None
        records = [record for record in answer if isinstance(record, SRV)]
        lowest = min((record.priority for record in records), default=0)
        targets = sorted(
            {
                (record.target.to_text(omit_final_dot=True), record.port)
                for record in records
                if record.priority == lowest and record.target.labels != (b"",)
            }
        )
        odd = [host for host, _ in targets if _HOST.fullmatch(host) is None]
        problems = [f"{config.name} has a target that is not a host name: {shown(host)}" for host in odd[:1]]
        targets = [(host, port) for host, port in targets if host not in odd]
        if len(targets) > MAX_ENGINES:
            problems.append(f"{config.name} has {len(targets)} targets, and only {MAX_ENGINES} are used")
        engines = [
            {**config.engine, **record_values(f"{host}:{port}", config.scheme, host, port, self._region)}
            for host, port in targets[:MAX_ENGINES]
        ]
        ttl_s = float(answer.rrset.ttl) if answer.rrset is not None else 0.0
        return DiscoveredEngines(engines, min(max(ttl_s, config.interval_s), LONGEST_S), problems)

    def close(self) -> None:
        """Does nothing, since nothing is open between two reads."""

    def _resolver(self) -> Resolver:
        """A resolver with the config's servers, or else the system's servers as they are now."""
        servers = self._config.servers
        made = Resolver(configure=not servers)
        if servers:
            pairs = [server.rpartition(":") for server in servers]
            made.nameservers = [Do53Nameserver(host.strip("[]"), int(port)) for host, _, port in pairs]
        return made
