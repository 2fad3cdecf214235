"""The beginnings of a prompt, by which a call without a session finds the conversation that it continues."""

from typing import Final, NamedTuple

from warmroute.contract.conversations import Asked
from warmroute.guard.prompt import Prompt, text_of

MAX_RETURNED: Final = 16
"""Users' messages that are looked up: the newest. Only one of the last may come back shortened."""


class Beginnings(NamedTuple):
    """A hash for the prompt up to each of its messages, and its users' messages: the one that ends it, and those that
    an assistant's follows.
    """

    hashes: list[int]
    asked: Asked | None
    returned: list[Asked]


def beginnings_of(prompt: Prompt) -> Beginnings | None:
    """The beginnings of a prompt of messages, a user's among them; None of any other."""
    system, messages = prompt.system, prompt.messages
    roles = [*system.roles, *messages.roles]
    if "user" not in roles or messages.name == "prompt":
        return None
    front = len(prompt.tools)
    stem = prompt.chain[front - 1] if front else hash(prompt.model)
    hashes = prompt.chain[front:]
    pieces = [*(system.raw or ()), *(messages.raw or ())]
    returned: list[Asked] = []
    asked = None
    for at in range(max(len(roles) - 2 * MAX_RETURNED, 0), len(roles)):
        role = roles[at]
        if role == "user":
            text = text_of(pieces[at]).encode("utf-8", "surrogatepass")
            asked = Asked(at, hashes[at - 1] if at else stem, text) if text else None
            continue
        if asked is not None and role in ("assistant", "model"):
            returned.append(asked)
        asked = None
    return Beginnings(hashes, asked, returned)
