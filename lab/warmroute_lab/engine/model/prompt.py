"""From a request body to the text that the model reads, and from the text to tokens and page keys.

`render` writes the prompt in template order: tools, then messages as they come, then the head of the answer. The text
is canonical: what a template does not read makes no difference. So it has no `cache_control`, no ids of tool calls and
no past reasoning, and string content gives the text of a list with one text part. An assistant message is rendered
exactly as an answer was generated, so an answer that comes back verbatim continues the cached prefix. As in SGLang, an
assistant message at the end counts as the user's, or with `continue_final_message` as the beginning of the answer.

The embedded engine has no tokenizer: one token is 4 bytes of the rendered UTF-8 text; the last token may be shorter.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import xxhash

TOKEN_BYTES = 4
ANSWER_HEAD = b"<|assistant|>\n"
_END = b"<|end|>\n"
_encode = msgspec.json.Encoder().encode


def tokens(rendered: bytes) -> int:
    return -(-len(rendered) // TOKEN_BYTES)


def render(body: Mapping[str, Any]) -> bytes:
    """The prompt of a chat-completions body (`tools`, `messages`) or of a completions body (`prompt`)."""
    if "messages" not in body:
        return render_plain(body.get("prompt"))
    out: list[bytes] = []
    tools = body.get("tools")
    if tools:
        out.append(b"<|tools|>\n")
        for tool in tools:
            out += (_encode(_plain_tool(tool)), b"\n")
        out.append(_END)
    messages, begun = _open_end(body)
    for message in messages:
        out += (b"<|", _text(message.get("role")), b"|>\n", *_content(message.get("content")))
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            out += render_call(function.get("name"), function.get("arguments"))
        out.append(_END)
    out += (ANSWER_HEAD, begun)
    return b"".join(out)


def begun_answer(body: Mapping[str, Any]) -> bytes:
    """The beginning of the answer, if the chat body has one; the engine does not generate it again."""
    return _open_end(body)[1] if body.get("messages") else b""


def _open_end(body: Mapping[str, Any]) -> tuple[Sequence[Mapping[str, Any]], bytes]:
    """The messages before the answer, and the beginning of the answer."""
    messages = body["messages"]
    last_message = messages[-1] if messages else {}
    if last_message.get("role") != "assistant" or not isinstance(last_message.get("content"), str):
        return messages, b""
    if body.get("continue_final_message"):
        return messages[:-1], last_message["content"].encode()
    return [*messages[:-1], {"role": "user", "content": last_message["content"]}], b""


def render_plain(prompt: Any) -> bytes:
    """A plain prompt: a string, or token ids, each standing for 4 bytes."""
    if isinstance(prompt, str):
        return prompt.encode()
    return b"".join((int(token) & 0xFFFFFFFF).to_bytes(TOKEN_BYTES, "little") for token in prompt or ())


def render_call(name: Any, arguments: Any) -> tuple[bytes, bytes]:
    """One tool call of an answer: its head, and its arguments as text."""
    return b"<|call|>" + _text(name) + b"\n", _text(arguments)


def page_keys(rendered: bytes, page_size: int, namespace: bytes, *, bigram: bool = False) -> list[int]:
    """The chained key of every complete page, starting from a namespace (the salt).

    With `bigram`, a page consists of pairs of neighbouring tokens, as with EAGLE, so its key covers one token more.
    """
    page_bytes = page_size * TOKEN_BYTES
    reach = page_bytes + TOKEN_BYTES if bigram else page_bytes
    digest = xxhash.xxh3_64_intdigest
    key = digest(namespace)
    view = memoryview(rendered)
    keys = []
    for start in range(0, len(rendered) - reach + 1, page_bytes):
        key = digest(view[start : start + reach], key)
        keys.append(key)
    return keys


def _content(content: Any) -> Sequence[bytes]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (content.encode(),)
    if isinstance(content, list):
        return [_part(part) for part in content]
    return (_encode(content),)


def _part(part: Any) -> bytes:
    """The text of a part, the address of an image, or any other part as JSON without `cache_control`."""
    if isinstance(part, str):
        return part.encode()
    if not isinstance(part, dict):
        return _encode(part)
    if isinstance(part.get("text"), str):
        return part["text"].encode()  # type: ignore[no-any-return]
    image = part.get("image_url")
    if image is not None:
        url = image.get("url") if isinstance(image, dict) else image
        return b"<|image|>" + _text(url)
    return _encode(_unmarked(part))


def _plain_tool(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    tool = _unmarked(tool)
    if isinstance(tool.get("function"), dict):
        tool["function"] = _unmarked(tool["function"])
    return tool


def _unmarked(value: dict[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in value.items() if name != "cache_control"}


def _text(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return b"" if value is None else _encode(value)
