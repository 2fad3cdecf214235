"""The contents of a request: each becomes messages of chat by itself."""

from collections import Counter, deque
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.content import cleaned, content_of, is_base64, is_given, misread
from warmroute_proxy.dialects.raw_json import BadRequest, ChatPart, is_text
from warmroute_proxy.normalising.texts import Texts

Opened = Callable[[str], str | None]
"""Opens sealed thoughts; None for what was not sealed here."""

_PLACEHOLDERS: Final = frozenset({"skip_thought_signature_validator", "context_engineering_is_the_way_to_go"})
"""What Gemini CLI sends for a signature that it does not have: ai.google.dev/gemini-api/docs/thought-signatures."""

_ROLES: Final = {"user": "user", "model": "model", "function": "user", "system": "system", "": "user"}


class _Blob(msgspec.Struct):
    data: str | None = None
    mimeType: str | None = None  # noqa: N815 - Google's name
    mime_type: str | None = None
    fileUri: str | None = None  # noqa: N815
    file_uri: str | None = None


class _Call(msgspec.Struct):
    name: str
    id: str | None = None
    args: Raw = Raw(b"{}")


class _Result(msgspec.Struct):
    name: str
    id: str | None = None
    response: Raw = Raw(b"{}")
    parts: list["_Piece"] | None = None


class _Piece(msgspec.Struct):
    """A part of a content."""

    text: Raw = Raw()
    thought: bool | None = None
    thoughtSignature: str | None = None  # noqa: N815
    thought_signature: str | None = None
    functionCall: _Call | None = None  # noqa: N815
    function_call: _Call | None = None
    functionResponse: _Result | None = None  # noqa: N815
    function_response: _Result | None = None
    inlineData: _Blob | None = None  # noqa: N815
    inline_data: _Blob | None = None
    fileData: _Blob | None = None  # noqa: N815
    file_data: _Blob | None = None
    executableCode: Raw = Raw()  # noqa: N815
    codeExecutionResult: Raw = Raw()  # noqa: N815


class _Content(msgspec.Struct):
    parts: list[_Piece] | None = None
    role: str | None = None


_decode_contents: Final = msgspec.json.Decoder(list[_Content]).decode
_decode_content: Final = msgspec.json.Decoder(_Content).decode
_decode_text: Final = msgspec.json.Decoder(str).decode


class ContentReader:
    """The messages of one request. It numbers its calls, and finds the call of each result.

    `dropped`: how many parts of a kind the model does not see.
    """

    def __init__(self, opened: Opened, texts: Texts) -> None:
        self.messages: list[ChatPart] = []
        self.dropped: Counter[str] = Counter()
        self._opened = opened
        self._texts = texts
        self._calls = 0
        self._ids: set[str] = set()
        self._unanswered: dict[str, deque[str]] = {}  # ids of calls by the name of the function

    def instruct(self, raw: Raw) -> None:
        """Begin with `systemInstruction`. Raises: BadRequest."""
        path = "systemInstruction"
        if is_text(raw):
            self._add("system", [{"type": "text", "text": raw}])
            return
        try:
            content = _decode_content(raw)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise misread(error, path) from None
        self._instruct(content.parts or [], path)

    def read(self, raw: Raw | None) -> None:
        """Take all contents. Raises: BadRequest."""
        if raw is None:
            raise BadRequest("contents", "is required")
        try:
            contents = _decode_contents(raw)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise misread(error, "contents") from None
        if not contents:
            raise BadRequest("contents", "is empty")
        for at, content in enumerate(contents):
            self._content(content, f"contents[{at}]")
        if not self.messages:
            raise BadRequest("contents", "hold nothing that a model can be asked")

    def _content(self, content: _Content, path: str) -> None:
        role = _ROLES.get(content.role or "")
        if role is None:
            raise BadRequest(f"{path}.role", "must be user or model")
        if not content.parts:
            raise BadRequest(f"{path}.parts", "is required" if content.parts is None else "is empty")
        pieces = [(piece, f"{path}.parts[{at}]") for at, piece in enumerate(content.parts)]
        if role == "model":
            self.messages.append(self._of_model(pieces))
        elif role == "system":
            self._instruct(content.parts, path)
        else:
            self._of_user(pieces)

    def _instruct(self, pieces: list[_Piece], path: str) -> None:
        texts = [_text(piece, f"{path}.parts[{at}]") for at, piece in enumerate(pieces)]
        self._add("system", [{"type": "text", "text": text} for text in texts])

    def _add(self, role: str, pieces: list[ChatPart]) -> None:
        left = cleaned(pieces, role, self._texts)
        if left:
            self.messages.append({"role": role, "content": content_of(left)})

    def _of_model(self, pieces: list[tuple[_Piece, str]]) -> ChatPart:
        thoughts: list[str] = []
        sealed: str | None = None
        texts: list[ChatPart] = []
        calls: list[ChatPart] = []
        for piece, path in pieces:
            signature = piece.thoughtSignature or piece.thought_signature
            if signature is not None and signature not in _PLACEHOLDERS:
                found = self._opened(signature)
                if found is None:
                    self.dropped["thoughtSignature"] += 1
                else:
                    sealed = (sealed or "") + found
            call = piece.functionCall or piece.function_call
            if call is not None:
                calls.append(self._call(call, path))
            elif piece.thought:
                thoughts.append(_decode_text(_text(piece, path)))
            elif piece.executableCode or piece.codeExecutionResult:
                self.dropped["executableCode"] += 1
            else:
                text = _text(piece, path)
                if len(memoryview(text)) > len(b'""'):
                    texts.append({"type": "text", "text": text})
        message: ChatPart = {"role": "assistant"}
        thought = sealed if sealed is not None else "".join(thoughts)
        if thought:
            message["reasoning_content"] = thought
        message["content"] = content_of(texts) if texts else None if calls else ""
        if calls:
            message["tool_calls"] = calls
        return message

    def _call(self, call: _Call, path: str) -> ChatPart:
        self._calls += 1
        call_id = call.id or f"call_{self._calls}"
        self._ids.add(call_id)
        self._unanswered.setdefault(call.name, deque()).append(call_id)
        arguments = _json_text(call.args, f"{path}.functionCall.args")
        return {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}

    def _of_user(self, pieces: list[tuple[_Piece, str]]) -> None:
        """Results of calls first, then what the user says."""
        spoken: list[ChatPart] = []
        for piece, path in pieces:
            result = piece.functionResponse or piece.function_response
            if result is None:
                spoken.append(_piece(piece, path))
                continue
            inside = f"{path}.functionResponse"
            content = _json_text(result.response, f"{inside}.response")
            self.messages.append({"role": "tool", "tool_call_id": self._answered(result, inside), "content": content})
            spoken += [_piece(inner, f"{inside}.parts[{at}]") for at, inner in enumerate(result.parts or ())]
        self._add("user", spoken)

    def _answered(self, result: _Result, path: str) -> str:
        """The id of the call that a result is of: by its id, else the first call of its name that has none."""
        waiting = self._unanswered.get(result.name)
        if result.id is not None and result.id in self._ids:
            if waiting and result.id in waiting:
                waiting.remove(result.id)
            return result.id
        if not waiting:
            raise BadRequest(path, "no functionCall before it is the one that it answers")
        return waiting.popleft()


def _piece(piece: _Piece, path: str) -> ChatPart:
    """A part of what the user says: a text or an image."""
    blob = piece.inlineData or piece.inline_data
    if blob is not None:
        path = f"{path}.inlineData"
        if not (blob.mimeType or blob.mime_type or "").startswith("image/"):
            raise BadRequest(f"{path}.mimeType", "must be an image's: nothing else is served here")
        data = blob.data or ""
        if not is_base64(data):
            raise BadRequest(f"{path}.data", "is not base64")
        url = f"data:{blob.mimeType or blob.mime_type};base64,{data}"
        return {"type": "image_url", "image_url": {"url": url}}
    blob = piece.fileData or piece.file_data
    if blob is not None:
        url = blob.fileUri or blob.file_uri or ""
        if not url.startswith(("https://", "http://")) or not (blob.mimeType or blob.mime_type or "image/").startswith(
            "image/"
        ):
            raise BadRequest(f"{path}.fileData", "must be the address of an image: nothing is stored here")
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "text", "text": _text(piece, path)}


def _text(piece: _Piece, path: str) -> Raw:
    if not is_given(piece.text):
        raise BadRequest(path, "is no part that is served here: text, inlineData, functionCall, functionResponse")
    if not is_text(piece.text):
        raise BadRequest(f"{path}.text", "must be a text")
    return piece.text


def _json_text(raw: Raw, path: str) -> str:
    """An object as it came, as a text."""
    if memoryview(raw)[0] != 0x7B:
        if is_given(raw):
            raise BadRequest(path, "must be an object")
        return "{}"
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError:
        raise BadRequest(path, "is not UTF-8") from None
