"""A reader of event streams that is slow and follows the text of the standard line by line, to compare with.

https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation. It differs in what the proxy
promises beyond that: data of several lines is JSON, so its line ends are spaces; an event without data is a sign of
life; an event that is named an error stays one.
"""

import re
from collections.abc import Iterator

ALIVE = b":"


def events_of(stream: bytes) -> list[tuple[bytes, bytes]]:
    """The name and the data of each event, and `ALIVE` with nothing where there is a sign of life."""
    found, name, data, said = [], b"", list[bytes](), False
    for line in _lines(stream.removeprefix(b"\xef\xbb\xbf")):
        if line:
            said = True
            field, _, value = line.partition(b":")
            value = value[1:] if value[:1] == b" " else value
            if field == b"event":
                name = value
            elif field == b"data":
                data.append(value)
            elif field == b"error" and b":" in line:
                name = b"error"
                data.append(value)
            continue
        if b" ".join(data).strip():
            found.append((b"error" if name == b"error" else b"", b" ".join(data).strip()))
        elif said:
            found.append((ALIVE, b""))
        name, data, said = b"", [], False
    return found


def _lines(stream: bytes) -> Iterator[bytes]:
    """The lines that have ended."""
    at = 0
    for found in re.finditer(rb"\r\n|\r|\n", stream):
        yield stream[at : found.start()]
        at = found.end()
