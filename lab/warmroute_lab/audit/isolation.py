"""The trials: a tenant sends a prompt that nobody knows, then others send the same one and others that are new.

What an outsider sees of the prompt that was sent before must be what it sees of a new one: as many cached tokens, and
the same times. The first tenant itself sends its prompt again, too. That is the control: if it sees nothing either,
then nothing was cached, or the noise hides it, and an outsider who sees nothing proves nothing.

A cache belongs to a worker. A prompt that an outsider sends to another worker says nothing, so only trials count in
which both were served by the same one.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from warmroute_lab.audit.probes import Probe, Sender, new_prompt

MOST_TRIALS: Final = 8
"""Times the trials that were asked for: so often is tried until enough of them met on a worker."""


class Relation(Enum):
    """Who sends the prompt of the first tenant again."""

    OUTSIDER = "another tenant"
    MEMBER = "same share group"
    ITSELF = "the tenant itself"


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """How to try. `filler`: new prompts that the first tenant sends in between, so that its own leaves the device."""

    trials: int
    prompt_bytes: int
    filler: int


@dataclass(slots=True)
class Seen:
    """What one relation saw: of prompts that were sent before, where a worker had them, and of new ones."""

    again: list[Probe] = field(default_factory=list)
    new: list[Probe] = field(default_factory=list)


def audit(
    senders: dict[Relation, Sender], options: AuditOptions, on_trial: Callable[[int], None]
) -> dict[Relation, Seen]:
    """Make the trials. `on_trial` is told how many have counted. Raises: AuditError."""
    seen = {relation: Seen() for relation in senders}
    made = 0
    while (counted := min(len(each.again) for each in seen.values())) < options.trials:
        on_trial(counted)
        if made >= MOST_TRIALS * options.trials:
            break
        _trial(senders, options, seen)
        made += 1
    return seen


def _trial(senders: dict[Relation, Sender], options: AuditOptions, seen: dict[Relation, Seen]) -> None:
    tenant = senders[Relation.ITSELF]
    prompt = new_prompt(options.prompt_bytes)
    first = tenant.send(prompt)
    for _ in range(options.filler):
        tenant.send(new_prompt(options.prompt_bytes))
    for relation, sender in senders.items():  # the tenant itself last: it brings the prompt back to the device
        steps = [prompt, new_prompt(options.prompt_bytes)]
        if secrets.randbelow(2):  # so that nothing that comes with time tells them apart
            steps.reverse()
        for step in steps:
            probe = sender.send(step)
            if step is not prompt:
                seen[relation].new.append(probe)
            elif probe.worker == first.worker:
                seen[relation].again.append(probe)
