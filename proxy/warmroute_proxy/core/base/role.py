"""What an engine does of a request."""

from typing import Final, Literal, get_args

Role = Literal["aggregated", "prefill", "decode"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
