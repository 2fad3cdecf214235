"""What this room sends to the other processes of the proxy, and receives from them.

`processes.peer_processes` implements it. It is set only if a proxy has several processes.
"""

from typing import Protocol


class PeerUpdates(Protocol):
    """Updates between the processes of a proxy."""

    def apply_updates(self) -> None:
        """Apply what the other processes have sent."""

    def send_tag(self, cache_worker: str, tag: str) -> None:
        """The request that the router dispatched last was sent under a tag."""

    def send_prompt_tokens(self, cache_worker: str, tag: str, prompt_tokens: int) -> None:
        """Send the number of tokens in the prompt of a tag."""

    def send_health(self, engine: str, status: int | None) -> None:
        """This process requests `/health` (None), or has the answer: its status, or 0 if none came."""
