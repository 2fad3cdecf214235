"""The proxy's configuration of a trial: the plan's engines on this machine, and one tenant.

The tenant's key follows from a secret in the state directory.
"""

from pathlib import Path
from typing import Final

from warmroute_backend.launch.topology import LOCAL
from warmroute_backend.plan.deployment import Plan
from warmroute_backend.plan.files.proxy import REGION, tables_of
from warmroute_backend.plan.tables import table
from warmroute_cli import state
from warmroute_proxy.server.base.secrets import key_sha256

CONFIG: Final = "proxy.toml"


def write_config(plan: Plan, state_dir: Path, port: int, admin_port: int) -> Path:
    """Write it into the state directory; its path. Raises: OSError."""
    proxy = {"region": REGION, "host": LOCAL, "port": port, "admin_host": LOCAL, "admin_port": admin_port}
    tables = [
        "# Made by `warmroute launch` for a trial.",
        table("[proxy]", {**proxy, "state_dir": str(state_dir / "proxy")}),
        table("[secret]", {"file": str(state.secret_file(state_dir))}),
        table("[[region]]", {"name": REGION, "url": ""}),
        *tables_of(plan),
        table("[[tenant]]", {"name": "demo", "key_sha256": [key_sha256(state.api_key(state_dir))]}),
    ]
    path = state_dir / CONFIG
    path.write_text("\n".join(tables), encoding="utf-8")
    return path


def exports(state_dir: Path, port: int) -> list[str]:
    """The environment of a shell for an OpenAI client."""
    return [
        f"export OPENAI_BASE_URL=http://{LOCAL}:{port}/v1",
        f"export OPENAI_API_KEY={state.api_key(state_dir)}",
    ]
