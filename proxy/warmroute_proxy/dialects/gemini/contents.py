"""The contents of a request: each becomes messages of chat by itself.

The translation of a content is kept by its bytes (`Known`), together with the number of calls before it, which calls
without an id get theirs from. A result without an id is that of the first call of its name that waits, so a content
with one is translated each time.
"""

from collections import Counter, deque
from typing import Final, NamedTuple, Protocol

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.content import (
    assistant_message,
    cleaned,
    content_of,
    is_address,
    is_base64,
    is_given,
    misread,
)
from warmroute_proxy.dialects.known import Known
from warmroute_proxy.dialects.raw_json import BadRequest, ChatPart, in_list, is_text
from warmroute_proxy.dialects.work import KNOWN_PER_STEP, TranslationWork
from warmroute_proxy.normalising.texts import Texts


class Opens(Protocol):
    """Opens sealed thoughts, with a key."""

    @property
    def key(self) -> bytes:
        """The key."""

    def open(self, sealed: str) -> str | None:
        """The thoughts; None for what was not sealed with this key."""


_PLACEHOLDERS: Final = frozenset({"skip_thought_signature_validator", "context_engineering_is_the_way_to_go"})
"""What Gemini CLI sends for a signature that it does not have: ai.google.dev/gemini-api/docs/thought-signatures."""

_ROLES: Final = {"user": "user", "model": "model", "function": "user", "system": "system", "": "user"}


class _Blob(msgspec.Struct):
    data: str | None = None
    mimeType: str | None = None  # noqa: N815 - Google's name
    mime_type: str | None = None
    fileUri: str | None = None  # noqa: N815
    file_uri: str | None = None


class _FunctionCall(msgspec.Struct):
    name: str
    id: str | None = None
    args: Raw = Raw(b"{}")


class _FunctionResponse(msgspec.Struct):
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
    functionCall: _FunctionCall | None = None  # noqa: N815
    function_call: _FunctionCall | None = None
    functionResponse: _FunctionResponse | None = None  # noqa: N815
    function_response: _FunctionResponse | None = None
    inlineData: _Blob | None = None  # noqa: N815
    inline_data: _Blob | None = None
    fileData: _Blob | None = None  # noqa: N815
    file_data: _Blob | None = None
    executableCode: Raw = Raw()  # noqa: N815
    codeExecutionResult: Raw = Raw()  # noqa: N815


class _Content(msgspec.Struct):
    parts: list[_Piece] | None = None
    role: str | None = None


_decode_content: Final = msgspec.json.Decoder(_Content).decode
_decode_text: Final = msgspec.json.Decoder(str).decode


class _Result(NamedTuple):
    """The result of a call, which has the id of that call, and the name of the function."""

    call_id: str
    name: str


class _InChat(NamedTuple):
    """One content in chat. `messages`: none or several, joined as JSON.

    `calls`: id and name of its calls. `results`: of calls, each with the id of its call. `dropped`: kinds of parts that
    the model does not see. `applied` and `off`: what rules did to its texts.
    """

    messages: bytes
    calls: tuple[tuple[str, str], ...]
    results: tuple[_Result, ...]
    dropped: tuple[str, ...]
    applied: frozenset[str]
    off: frozenset[str]


_INSTRUCTION: Final = -1  # in place of the number of calls before a content
_KNOWN: Final[Known[_InChat]] = Known()


class Waiting:
    """The calls of a conversation, and those of them that have no result yet. Each step takes constant time."""

    def __init__(self) -> None:
        self.count = 0
        self._ids: set[str] = set()
        self._answered: set[str] = set()  # of those that wait in a queue
        self._by_name: dict[str, deque[str]] = {}

    def add(self, calls: tuple[tuple[str, str], ...]) -> None:
        """Add calls: id and name of each."""
        self.count += len(calls)
        for call_id, name in calls:
            self._ids.add(call_id)
            self._answered.discard(call_id)
            self._by_name.setdefault(name, deque()).append(call_id)

    def has_all(self, results: tuple[_Result, ...]) -> bool:
        """Whether there is a call for each."""
        return all(result.call_id in self._ids for result in results)

    def answer(self, call_id: str | None, name: str, path: str) -> str:
        """The id of the call that a result is of: by its id, else the first call of its name that waits."""
        if call_id is not None and call_id in self._ids:
            self._answered.add(call_id)
            return call_id
        waiting = self._by_name.get(name)
        while waiting:
            found = waiting.popleft()
            if found not in self._answered:
                return found
        raise BadRequest(path, "no functionCall before it is the one that it answers")


class ContentReader:
    """The messages of one request, as JSON. `dropped`: how many parts of a kind the model does not see."""

    def __init__(self, seal: Opens, texts: Texts, work: TranslationWork) -> None:
        """`work`: what may be made of them."""
        self.messages: list[bytes] = []
        self.dropped: Counter[str] = Counter()
        self._seal = seal
        self._texts = texts
        self._work = work
        self._waiting = Waiting()

    def instruct(self, raw: Raw) -> None:
        """Begin with `systemInstruction`: a content, or a text. Raises: BadRequest."""
        scope = self._seal.key, self._texts.on, _INSTRUCTION
        found = _KNOWN.get(scope, raw)
        if found is None:
            found = _ContentReading(self._seal, Texts(self._texts.on), self._waiting, self._work).instruction(raw)
            _KNOWN.keep(scope, raw, found, len(found.messages))
        self._take(found)

    def read(self, raws: list[Raw]) -> None:
        """Take all contents. Raises: BadRequest."""
        if not raws:
            raise BadRequest("contents", "is empty")
        self._work.take(len(raws) // KNOWN_PER_STEP)
        for at, raw in enumerate(raws):
            scope = self._seal.key, self._texts.on, self._waiting.count
            found = _KNOWN.get(scope, raw)
            if found is not None and (not found.results or self._waiting.has_all(found.results)):
                for result in found.results:
                    self._waiting.answer(result.call_id, result.name, "")
            else:
                reading = _ContentReading(self._seal, Texts(self._texts.on), self._waiting, self._work)
                found = reading.read(raw, f"contents[{at}]")
                if reading.stands_alone:
                    _KNOWN.keep(scope, raw, found, len(found.messages))
            if found.calls:
                self._waiting.add(found.calls)
            self._take(found)
        if not self.messages:
            raise BadRequest("contents", "hold nothing that a model can be asked")

    def _take(self, found: _InChat) -> None:
        if found.dropped:
            self.dropped.update(found.dropped)
        if found.applied or found.off:
            self._texts.add(found.applied, found.off)
        if found.messages:
            self.messages.append(found.messages)


class _ContentReading:
    """Reads one content. `stands_alone`: its translation depends on nothing but the number of calls before it."""

    def __init__(self, seal: Opens, texts: Texts, waiting: Waiting, work: TranslationWork) -> None:
        self.stands_alone = True
        self._seal = seal
        self._texts = texts
        self._waiting = waiting
        self._work = work
        self._calls: list[tuple[str, str]] = []
        self._results: list[_Result] = []
        self._dropped: list[str] = []

    def read(self, raw: Raw, path: str) -> _InChat:
        """The content in chat."""
        try:
            content = _decode_content(raw)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise misread(error, path) from None
        role = _ROLES.get(content.role or "")
        if role is None:
            raise BadRequest(f"{path}.role", "must be user or model")
        if not content.parts:
            raise BadRequest(f"{path}.parts", "is required" if content.parts is None else "is empty")
        self._work.take(1 + len(content.parts))
        pieces = [(piece, f"{path}.parts[{at}]") for at, piece in enumerate(content.parts)]
        if role == "model":
            messages = [self._of_model(pieces)]
        elif role == "system":
            messages = self._message(role, [_text_piece(piece, where) for piece, where in pieces])
        else:
            messages = self._of_user(pieces)
        return self._made(messages)

    def instruction(self, raw: Raw) -> _InChat:
        """`systemInstruction` in chat."""
        path = "systemInstruction"
        if is_text(raw):
            pieces: list[ChatPart] = [{"type": "text", "text": raw}]
        else:
            try:
                parts = _decode_content(raw).parts or []
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                raise misread(error, path) from None
            self._work.take(len(parts))
            pieces = [_text_piece(piece, f"{path}.parts[{at}]") for at, piece in enumerate(parts)]
        return self._made(self._message("system", pieces))

    def _made(self, messages: list[ChatPart]) -> _InChat:
        json, calls, results = in_list(messages), tuple(self._calls), tuple(self._results)
        return _InChat(json, calls, results, tuple(self._dropped), *self._texts.scope())

    def _message(self, role: str, pieces: list[ChatPart]) -> list[ChatPart]:
        left = cleaned(pieces, role, self._texts)
        return [{"role": role, "content": content_of(left)}] if left else []

    def _of_model(self, pieces: list[tuple[_Piece, str]]) -> ChatPart:
        thoughts: list[str] = []
        sealed: str | None = None
        texts: list[ChatPart] = []
        calls: list[ChatPart] = []
        for piece, path in pieces:
            opened = self._opened(piece.thoughtSignature or piece.thought_signature)
            if opened is not None:
                sealed = (sealed or "") + opened
            call = piece.functionCall or piece.function_call
            if call is not None:
                calls.append(self._call(call, path))
            elif piece.thought:
                thoughts.append(_decode_text(_text(piece, path)))
            elif piece.executableCode or piece.codeExecutionResult:
                self._dropped.append("executableCode")
            else:
                text = _text(piece, path)
                if len(memoryview(text)) > len(b'""'):
                    texts.append({"type": "text", "text": text})
        return assistant_message(texts, sealed if sealed is not None else "".join(thoughts), calls)

    def _opened(self, signature: str | None) -> str | None:
        if signature is None or signature in _PLACEHOLDERS:
            return None
        found = self._seal.open(signature)
        if found is None:
            self._dropped.append("thoughtSignature")
        return found

    def _call(self, call: _FunctionCall, path: str) -> ChatPart:
        call_id = call.id or f"call_{self._waiting.count + len(self._calls) + 1}"
        self._calls.append((call_id, call.name))
        arguments = _json_text(call.args, f"{path}.functionCall.args")
        return {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}

    def _of_user(self, pieces: list[tuple[_Piece, str]]) -> list[ChatPart]:
        """Results of calls first, then what the user says."""
        messages: list[ChatPart] = []
        spoken: list[ChatPart] = []
        for piece, path in pieces:
            result = piece.functionResponse or piece.function_response
            if result is None:
                spoken.append(_chat_part(piece, path))
                continue
            inside = f"{path}.functionResponse"
            self._work.take(len(result.parts or ()))
            content = _json_text(result.response, f"{inside}.response")
            call_id = self._answered(result, inside)
            messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
            spoken += [_chat_part(inner, f"{inside}.parts[{at}]") for at, inner in enumerate(result.parts or ())]
        return messages + self._message("user", spoken)

    def _answered(self, result: _FunctionResponse, path: str) -> str:
        """The id of the call that a result is of."""
        call_id = self._waiting.answer(result.id, result.name, path)
        if call_id == result.id:
            self._results.append(_Result(call_id, result.name))
        else:
            self.stands_alone = False
        return call_id


def _chat_part(piece: _Piece, path: str) -> ChatPart:
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
        if not is_address(url) or not (blob.mimeType or blob.mime_type or "image/").startswith("image/"):
            raise BadRequest(f"{path}.fileData", "must be the address of an image: nothing is stored here")
        return {"type": "image_url", "image_url": {"url": url}}
    return _text_piece(piece, path)


def _text_piece(piece: _Piece, path: str) -> ChatPart:
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
