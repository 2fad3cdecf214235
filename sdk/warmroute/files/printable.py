"""Formats text for a terminal or a page."""


def printable(text: str) -> str:
    """The text in one line, with control characters escaped, since a terminal would obey them."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def number_of(number: int, noun: str) -> str:
    """A number with its noun: `1 turn`, `1,200 turns`."""
    return f"{number:,} {noun}{'s'[: number != 1]}"
