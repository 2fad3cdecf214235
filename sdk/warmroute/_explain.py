"""Why a turn was not warmer, in sentences."""

from warmroute._turns import Turn
from warmroute.contract.meanings import MEANINGS, UNKNOWN_CLASS


def explain(turn: Turn | None, name: str | None) -> str:
    """The text of `client.cache.explain()`; `name` is the session that was asked for, if any."""
    if turn is None:
        return "No turn was seen yet." if name is None else f"No turn of session {name} was seen."
    lines = [_headline(turn), *_losses(turn)]
    if turn.checked is not None:
        lines += [f"Repaired: {event}" for event in turn.checked.repairs]
        if turn.checked.event is not None:
            lines.append(f"On your side: {turn.checked.event}")
        elif turn.checked.continues:
            lines.append("On your side nothing broke the prefix: the prompt only grew since the turn before.")
    if turn.miss is not None:
        lines.append(f"Not on your side: {turn.miss}")
    return "\n".join(lines)


def _headline(turn: Turn) -> str:
    measured = turn.measured
    of = "The last turn" if turn.session is None else f"The last turn of session {turn.session}"
    if measured is None:
        later = f"; its receipt is {turn.receipt_id}" if turn.receipt_id else ""
        return f"{of}: its usage was not seen, because the answer had none or was not read to its end{later}."
    if measured.cached_tokens is None:
        return f"{of}: {measured.prompt_tokens:,} prompt tokens; the server does not say how many were cached."
    share = measured.cached_tokens / measured.prompt_tokens if measured.prompt_tokens else 0.0
    counts = f"{measured.cached_tokens:,} of {measured.prompt_tokens:,} prompt tokens were cached ({share:.1%})"
    return f"{of}: {counts}{f', in region {measured.region}' if measured.region else ''}."


def _losses(turn: Turn) -> list[str]:
    losses = turn.measured.losses if turn.measured is not None else {}
    order = sorted(losses.items(), key=lambda item: -item[1])
    return [f"{tokens:,} prompt tokens ({name}) {MEANINGS.get(name, UNKNOWN_CLASS)}" for name, tokens in order]
