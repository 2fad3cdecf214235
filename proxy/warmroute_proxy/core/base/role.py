"""Names the part of a request that an engine computes: prefill, decode, or both (aggregated)."""

from typing import Final, Literal, get_args

Role = Literal["aggregated", "prefill", "decode"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
