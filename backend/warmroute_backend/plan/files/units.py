"""systemd units: one for each engine process of each node, the Mooncake master, and the proxy.

Reasons for the limits: RDMA registers host memory (`LimitMEMLOCK`). Weights of a trillion parameters load for up to an
hour (`TimeoutStartSec`). After SIGTERM, SGLang waits for running requests without a limit
(`tokenizer_manager.py:3508`), so `TimeoutStopSec` sets one. `/health` is not a reason to restart an engine, since it
may wait while the engine works.
"""

import shlex
from collections.abc import Iterable
from typing import Final

from warmroute_backend.plan.argv import argv, environment
from warmroute_backend.plan.deployment import Plan, PlannedEngine, beside
from warmroute_backend.plan.files.proxy import STATE_DIR, master_command
from warmroute_backend.plan.lmcache import DAEMON, ENVIRONMENT, HEALTH, daemon_command

START_S: Final = 3600
STOP_S: Final = 900
POLL_S: Final = 5
_PROXY: Final = (
    "ExecReload=/bin/kill -HUP $MAINPID",
    "TimeoutStopSec=930",
    "KillMode=mixed",
    "LimitNOFILE=1048576",
    "WorkingDirectory=/var/lib/warmroute",
    "StateDirectory=warmroute",
    "StateDirectoryMode=0700",
    "ConfigurationDirectory=warmroute",
    "UMask=0077",
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "AmbientCapabilities=",
    "ProtectSystem=strict",
    "ProtectHome=yes",
    "PrivateTmp=yes",
    "PrivateDevices=yes",
    "PrivateUsers=yes",
    "ProtectClock=yes",
    "ProtectControlGroups=yes",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "ProtectProc=invisible",
    "ProcSubset=pid",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "SystemCallFilter=~@privileged @resources",
    "SystemCallFilter=setrlimit prlimit64 setpriority sched_setscheduler",
    "SystemCallErrorNumber=EPERM",
)
"""The restrictions and writable folders of deploy/systemd/warmroute-proxy.service, without its RemoveIPC. The proxy
runs as the engines' user, so RemoveIPC would remove the engines' shared memory when the proxy ends.
"""

WARMROUTE: Final = "/opt/warmroute/bin/warmroute"
"""The path at which docs/how-to/production.md installs the program."""


def units(plan: Plan) -> dict[str, str]:
    found = {}
    for engine in plan.engines:
        for rank in range(engine.nodes):
            name = engine.name if engine.nodes == 1 else f"{engine.name}-node{rank}"
            found[f"sglang-{name}.service"] = _engine(plan, engine, rank)
    if plan.has_store:
        found["mooncake-master.service"] = _plain(
            "Mooncake master, which knows where the shared KV lies",
            master_command(plan, beside(plan.site.python, "mooncake_master")),
            plan.site.user,
            ("WorkingDirectory=/etc/warmroute", "TimeoutStopSec=60", "LimitNOFILE=1048576"),
        )
    if plan.has_lmcache:
        more = [f"Environment={name}={each}" for name, each in ENVIRONMENT]
        more += [
            _until(plan.site.lmcache_http_port, HEALTH),
            f"TimeoutStartSec={START_S}",
            "TimeoutStopSec=60",
            *_LIMITS,
        ]
        found[f"{DAEMON}.service"] = _plain(
            "LMCache, which keeps the KV of this node's engines",
            daemon_command(plan, plan.cluster.per_node, beside(plan.site.python, "lmcache")),
            plan.site.user,
            more,
        )
    found["warmroute-proxy.service"] = _plain(
        "warmroute proxy", [WARMROUTE, "proxy", "--config", "/etc/warmroute/warmroute.toml"], plan.site.user, _PROXY
    )
    return found


def _engine(plan: Plan, engine: PlannedEngine, rank: int) -> str:
    host = plan.site.host(engine.node + rank)
    lines = ["[Unit]", f"Description=SGLang {engine.name} on {host}", "After=network-online.target"]
    lines.append("Wants=network-online.target")
    if engine.lmcache:  # a restart of the daemon restarts the units that require it
        lines += [f"Requires={DAEMON}.service", f"After={DAEMON}.service"]
    lines += ["", "[Service]", "Type=exec", f"User={plan.site.user}"]
    variables = environment(plan, engine)
    if "MOONCAKE_LOCAL_HOSTNAME" in variables:
        variables["MOONCAKE_LOCAL_HOSTNAME"] = host
    if plan.keeps_files(engine) and f"{plan.site.storage_dir}/".startswith(f"{STATE_DIR}/"):
        lines += ["StateDirectory=warmroute", "StateDirectoryMode=0700"]
    lines += [f"Environment={_quoted(f'{name}={value}')}" for name, value in variables.items()]
    command = [plan.site.python, *argv(plan, engine, rank)[1:]]
    lines.append(f"ExecStart={' '.join(_argument(each) for each in command)}")
    if rank == 0:
        lines.append(_until(engine.ports.http, "/ready"))
    lines += [f"TimeoutStartSec={START_S}", f"TimeoutStopSec={STOP_S}", "KillMode=mixed"]
    lines += ["Restart=on-failure", "RestartSec=10", *_LIMITS, "", "[Install]", "WantedBy=multi-user.target", ""]
    return "\n".join(lines)


def _until(port: int, path: str) -> str:
    """A command that waits until the path answers 200, so that the unit counts as starting until then."""
    wait = f"until curl -sf -o /dev/null {shlex.quote(f'http://127.0.0.1:{port}{path}')}; do sleep {POLL_S}; done"
    return f"ExecStartPost=/bin/sh -c {_argument(wait)}"


def _plain(description: str, command: list[str], user: str, more: Iterable[str]) -> str:
    lines = ["[Unit]", f"Description={description}", "After=network-online.target", "Wants=network-online.target", ""]
    lines += ["[Service]", "Type=exec", f"User={user}"]
    lines += [f"ExecStart={' '.join(_argument(each) for each in command)}", "Restart=on-failure", "RestartSec=2"]
    return "\n".join([*lines, *more, "", "[Install]", "WantedBy=multi-user.target", ""])


_LIMITS: Final = ("LimitMEMLOCK=infinity", "LimitNOFILE=1048576", "LimitSTACK=67108864")


def _argument(text: str) -> str:
    """A word of a command line in systemd's syntax, in which `$` is doubled, too."""
    return _quoted(text.replace("$", "$$"))


def _quoted(text: str) -> str:
    """A value in systemd's syntax: double quotes with escapes, and `%` doubled (systemd.syntax, systemd.unit)."""
    text = text.replace("%", "%%")
    if text and not set(text) & set(" \t\"'\\;"):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
