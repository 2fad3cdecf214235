"""Translates the contents of a request, one by one, to chat messages.

The translation of a content is cached (`Known`) by the content's bytes and the number of calls before it, because calls
without an id get one from that number. A result without an id belongs to the first call of its name that has no result
yet. So a content with a result without an id is translated each time. A result whose call is missing becomes a text of
the user.

A part that has no place in chat is replaced by the texts in it, and its kind is counted.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from warmroute_proxy.dialects.call_extras import call_of, parted
from warmroute_proxy.dialects.chat_draft import HistoryDraft, MessageDraft, Opens
from warmroute_proxy.dialects.content import (
    assistant_message,
    cleaned,
    data_image,
    data_text,
    image_at,
    is_address,
    is_given,
    readable,
    text_of,
)
from warmroute_proxy.dialects.foreign import UNTYPED, not_shown, texts_in
from warmroute_proxy.dialects.known import Known
from warmroute_proxy.dialects.raw_json import (
    BadRequest,
    ChatPart,
    Members,
    encode,
    in_list,
    is_list,
    is_object,
    is_text,
    object_at,
    text_in,
)
from warmroute_proxy.dialects.tool_arguments import NO_OBJECT
from warmroute_proxy.dialects.work import KNOWN_PER_STEP, TranslationWork
from warmroute_proxy.normalising.texts import Texts

_ROLE_BYTES: Final = 24
"""In how many bytes at the beginning or end of a content its role stands."""

_PLACEHOLDERS: Final = frozenset({"skip_thought_signature_validator", "context_engineering_is_the_way_to_go"})
"""What Gemini CLI sends if it does not have a signature: ai.google.dev/gemini-api/docs/thought-signatures."""

_ROLES: Final = {"user": "user", "model": "model", "function": "user", "tool": "user", "system": "system", "": "user"}
_STORED: Final = ("gs://", "files/", "https://generativelanguage.googleapis.com/")
"""Addresses of files that only Google can read."""

_IMAGE_NAMES: Final = (".png", ".jpg", ".jpeg", ".gif", ".webp")


class _Blob(msgspec.Struct):
    data: str | None = None
    mimeType: str | None = None  # noqa: N815 - Google's name
    mime_type: str | None = None
    fileUri: str | None = None  # noqa: N815
    file_uri: str | None = None


class _FunctionCall(msgspec.Struct):
    name: str = ""
    id: str | None = None
    args: Raw = Raw(b"{}")


class _FunctionResponse(msgspec.Struct):
    name: str = ""
    id: str | None = None
    response: Raw = Raw(b"{}")
    parts: Raw = Raw()


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


class _Content(msgspec.Struct):
    parts: list[_Piece] | None = None
    role: str | None = None


class _Bare(msgspec.Struct):
    """A content with its parts as raw JSON, which is decoded to reach members that `_Piece` does not have."""

    parts: list[Raw]
    role: object = None


_decode_bare: Final = msgspec.json.Decoder(_Bare).decode
_decode_content: Final = msgspec.json.Decoder(_Content).decode
_decode_piece: Final = msgspec.json.Decoder(_Piece).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_PROBLEMS: Final = (msgspec.DecodeError, ValueError, RecursionError)


class _Result(NamedTuple):
    """The result of a call: the id of that call, and the name of the function."""

    call_id: str
    name: str


class _InChat(NamedTuple):
    """One content in chat. `messages`: joined as JSON, or empty.

    `calls`: id and name of its calls. `results`: its results, each with the id of the call. `dropped`: kinds of parts
    that the model does not see. `applied` and `off`: normalising rules that changed its texts, and disabled rules that
    would have changed them.
    """

    messages: bytes
    calls: tuple[tuple[str, str], ...]
    results: tuple[_Result, ...]
    dropped: tuple[str, ...]
    applied: frozenset[str]
    off: frozenset[str]


_INSTRUCTION: Final = -1  # marks an instruction in the cache's keys, in place of the number of calls
_KNOWN: Final[Known[_InChat]] = Known()


class Waiting:
    """The calls of a conversation, and those of them that have no result yet. Each step takes constant time."""

    def __init__(self) -> None:
        self.count = 0
        self._ids: set[str] = set()
        self._answered: set[str] = set()  # ids that results gave; `answer` skips them in `_by_name`
        self._by_name: dict[str, deque[str]] = {}

    def add(self, calls: tuple[tuple[str, str], ...]) -> None:
        """Add calls: id and name of each."""
        self.count += len(calls)
        for call_id, name in calls:
            self._ids.add(call_id)
            self._answered.discard(call_id)
            self._by_name.setdefault(name, deque()).append(call_id)

    def has_all(self, results: tuple[_Result, ...]) -> bool:
        return all(result.call_id in self._ids for result in results)

    def answer(self, call_id: str | None, name: str) -> str | None:
        """Return the id of the call that a result answers: `call_id` if a call has it, else that of the first waiting
        call of the function `name`. None if no call is found.
        """
        if call_id is not None and call_id in self._ids:
            self._answered.add(call_id)
            return call_id
        waiting = self._by_name.get(name)
        while waiting:
            found = waiting.popleft()
            if found not in self._answered:
                return found
        return None


class ContentReader(HistoryDraft):
    def __init__(self, seal: Opens, texts: Texts, work: TranslationWork) -> None:
        super().__init__(texts, seal.key, work)
        self._seal = seal
        self._waiting = Waiting()

    def instruct(self, raw: Raw) -> None:
        """Begin with `systemInstruction`: a content, or a text. Raises: BadRequest."""
        scope = *self.scope, _INSTRUCTION
        found = _KNOWN.get(scope, raw)
        if found is None:
            found = self._reading(is_late=False).instruction(raw)
            _KNOWN.keep(scope, raw, found, len(found.messages))
        self._take(found)

    def read(self, raws: list[Raw]) -> None:
        """Take all contents. Raises: BadRequest."""
        if not raws:
            raise BadRequest("contents", "is empty")
        self.work.take(len(raws) // KNOWN_PER_STEP)
        for at, raw, has_pieces in _turns(raws):
            is_late = self.may_be_late and bool(self.messages)
            scope = *self.scope, is_late, has_pieces, self._waiting.count
            found = _KNOWN.get(scope, raw)
            if found is not None and (not found.results or self._waiting.has_all(found.results)):
                for result in found.results:
                    self._waiting.answer(result.call_id, result.name)
            else:
                reading = self._reading(is_late=is_late)
                found = reading.read(raw, f"contents[{at}]", has_pieces=has_pieces)
                if reading.stands_alone:
                    _KNOWN.keep(scope, raw, found, len(found.messages))
            if found.calls:
                self._waiting.add(found.calls)
            self._take(found)
        if not self.messages:
            raise BadRequest("contents", "hold nothing that a model can be asked")

    def _reading(self, *, is_late: bool) -> "_ContentReading":
        return _ContentReading(self._seal, Texts(self.texts.on), self._waiting, self.work, is_late=is_late)

    def _take(self, found: _InChat) -> None:
        self.note(found.dropped, found.applied, found.off)
        if found.messages:
            self.messages.append(found.messages)


class _ContentReading(MessageDraft):
    """Reads one content. `stands_alone`: its translation depends on nothing but the number of calls before it."""

    def __init__(self, seal: Opens, texts: Texts, waiting: Waiting, work: TranslationWork, *, is_late: bool) -> None:
        super().__init__(texts, work, is_late=is_late)
        self.stands_alone = True
        self._seal = seal
        self._waiting = waiting
        self._raw = Raw()
        self._parts: list[Raw] | None = None  # the parts of `_raw`, decoded at the first use
        self._calls: list[tuple[str, str]] = []
        self._results: list[_Result] = []

    def read(self, raw: Raw, path: str, *, has_pieces: bool) -> _InChat:
        """Read a content. `has_pieces`: its parts are those of several contents, so its texts are pieces of one."""
        content, pieces = self._content(raw, path)
        role = _ROLES.get(content.role or "")
        if role is None:
            self.dropped.append(content.role or "")
            role = "user"
        if role == "model":
            messages = self._of_model(_with_whole_texts(pieces) if has_pieces else pieces)
        elif role == "system":
            messages = self._message(
                "system", [text for piece, where in pieces for text in self._texts_of(piece, where)]
            )
        else:
            messages = self._of_user(pieces)
        self.count_empty(messages)
        return self._made(messages)

    def instruction(self, raw: Raw) -> _InChat:
        if is_text(raw):
            return self._made(self._message("system", [{"type": "text", "text": raw}]))
        content = Raw(b'{"parts":%b}' % bytes(raw)) if is_list(raw) else raw
        _, pieces = self._content(content, "systemInstruction")
        return self._made(self._system(pieces))

    def _content(self, raw: Raw, path: str) -> tuple[_Content, list[tuple[_Piece, str]]]:
        try:
            content = _decode_content(raw)
        except _PROBLEMS:
            self.dropped.append(UNTYPED)
            content = _content_of(raw, self.work)
        self._raw = raw
        parts = content.parts or []
        self.work.take(1 + len(parts))
        return content, [(piece, f"{path}.parts[{at}]") for at, piece in enumerate(parts)]

    def _made(self, messages: list[ChatPart]) -> _InChat:
        json, calls, results = in_list(messages), tuple(self._calls), tuple(self._results)
        return _InChat(json, calls, results, tuple(self.dropped), *self.texts.scope())

    def _system(self, pieces: list[tuple[_Piece, str]]) -> list[ChatPart]:
        return self._message("system", [text for piece, where in pieces for text in self._texts_of(piece, where)])

    def _message(self, role: str, pieces: list[ChatPart]) -> list[ChatPart]:
        return self.message_with(role, cleaned(pieces, role, self.texts))

    def _of_model(self, pieces: list[tuple[_Piece, str]]) -> list[ChatPart]:
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
                calls += self._call(call)
            elif piece.thought and _has_text(piece):
                thoughts.append(_decode_text(piece.text))
            elif piece.thoughtSignature is None or is_given(piece.text):
                texts += self._texts_of(piece, path)
        thought = sealed if sealed is not None else "".join(thoughts)
        return [assistant_message(texts, thought, calls)] if texts or calls or thought else []

    def _opened(self, signature: str | None) -> str | None:
        if signature is None or signature in _PLACEHOLDERS:
            return None
        found = self._seal.open(signature)
        if found is None:
            self.dropped.append("thoughtSignature")
        return found

    def _call(self, call: _FunctionCall) -> list[ChatPart]:
        if not call.name:
            self.dropped.append("functionCall")
            return []
        given_id = call.id or f"call_{self._waiting.count + len(self._calls) + 1}"
        arguments = _json_text(call.args)
        if arguments[:1] != "{":
            self.dropped.append(NO_OBJECT)
            arguments = encode({"arguments": call.args}).decode()
        found = call_of(given_id, call.name, arguments)
        self._calls.append((found["id"], call.name))
        return [found]

    def _of_user(self, pieces: list[tuple[_Piece, str]]) -> list[ChatPart]:
        messages: list[ChatPart] = []
        spoken: list[ChatPart] = []
        for piece, path in pieces:
            result = piece.functionResponse or piece.function_response
            if result is None:
                spoken += self._shown(piece, path)
                continue
            content, call_id = _json_text(result.response), self._answered(result)
            if call_id is None:
                self.dropped.append("functionResponse")
                spoken.append(text_of(content))
            else:
                messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
            for at, inner in enumerate(_pieces_of(result.parts, self.work) if is_given(result.parts) else ()):
                spoken += self._shown(inner, f"{path}.functionResponse.parts[{at}]", of_tool=True)
        return messages + self._message("user", spoken)

    def _answered(self, result: _FunctionResponse) -> str | None:
        given_id = None if result.id is None else parted(result.id)[0]
        call_id = self._waiting.answer(given_id, result.name)
        if call_id is not None and call_id == given_id:
            self._results.append(_Result(call_id, result.name))
        else:
            self.stands_alone = False
        return call_id

    def _shown(self, piece: _Piece, path: str, *, of_tool: bool = False) -> list[ChatPart]:
        """A part of a user's content, or of a tool's result: a tool may write anything as an address."""
        blob = piece.inlineData or piece.inline_data
        if blob is not None:
            image = data_image(blob.mimeType or blob.mime_type or "", blob.data or "")
            text = None if image is not None else data_text(blob.data or "")
            return [image] if image is not None else self._file("inlineData", text)
        blob = piece.fileData or piece.file_data
        if blob is None:
            return self._texts_of(piece, path)
        url = blob.fileUri if blob.fileUri is not None else blob.file_uri
        media_type = blob.mimeType or blob.mime_type or ""
        if url is None or not (media_type or "image/").startswith("image/") or url.startswith(_STORED):
            return self._file("fileData", None)
        if not is_address(url) and not of_tool:
            raise BadRequest(f"{path}.fileData", "must be the address of an image: nothing is stored here")
        is_image = media_type or url.partition("#")[0].partition("?")[0].lower().endswith(_IMAGE_NAMES)
        return [image_at(url)] if is_address(url) and is_image else self._file("fileData", None)

    def _file(self, kind: str, text: str | None) -> list[ChatPart]:
        """The text of a file, or a note if the file has no text."""
        if text is None:
            self.dropped.append(kind)
        return [text_of(not_shown(kind) if text is None else text)]

    def _texts_of(self, piece: _Piece, path: str) -> list[ChatPart]:
        """The text of a part; for a part that has no place in chat, the texts in it."""
        if _has_text(piece):
            return [{"type": "text", "text": piece.text}] if len(memoryview(piece.text)) > len(b'""') else []
        members = self._members(path)
        for kind in ("inlineData", "fileData"):
            if getattr(piece, kind) is not None or kind in members:
                return self._file(kind, None)
        names = [name for name in members if name not in ("thought", "thoughtSignature", "thought_signature")]
        self.dropped.append(names[0] if names else UNTYPED)
        found = texts_in({"content": Raw(encode({"content": list(members.values())}))}, self.work)
        return [text_of(found)] if found else []

    def _members(self, path: str) -> Members:
        """All members of the part at `path`, including unknown ones; empty for a part in a result."""
        if self._parts is None:
            try:
                self._parts = _decode_bare(self._raw).parts
            except _PROBLEMS:
                self._parts = []
        *_, content, at_piece = path.split(".")
        if content.startswith("functionResponse"):
            return {}
        at = int(at_piece[len("parts[") : -1])
        return object_at(self._parts[at], path) if at < len(self._parts) and is_object(self._parts[at]) else {}


def _turns(raws: list[Raw]) -> Iterator[tuple[int, Raw, bool]]:
    """The contents with their numbers, and each run of the model's contents joined to one (True): Google's clients keep
    each event of a stream as a content of its own.
    """
    run: list[Raw] = []  # the parts of the model's contents before `raw`
    first = 0
    for at, raw in enumerate(raws):
        may_join = _is_of_model(raw) and (bool(run) or (at + 1 < len(raws) and _is_of_model(raws[at + 1])))
        parts = _parts_of_model(raw) if may_join else None
        if parts is not None:
            first = first if run else at
            run += parts
            continue
        if run:
            yield first, _of_parts(run), True
            run = []
        yield at, raw, False
    if run:
        yield first, _of_parts(run), True


def _with_whole_texts(pieces: list[tuple[_Piece, str]]) -> list[tuple[_Piece, str]]:
    """The parts of a model's turn, with neighbouring texts joined."""
    found: list[tuple[_Piece, str]] = []
    texts: list[str] = []
    for piece, path in [*pieces, (_Piece(), "")]:
        signed = piece.thoughtSignature or piece.thought_signature
        called = piece.functionCall or piece.function_call
        if _has_text(piece) and not (piece.thought or signed or called):
            texts.append(_decode_text(piece.text))
            continue
        if texts:
            found.append((_Piece(text=Raw(encode("".join(texts)))), path))
            texts = []
        found.append((piece, path))
    return found[:-1]


def _is_of_model(raw: Raw) -> bool:
    """Whether a content looks like one of the model. Its role is its first or its last member."""
    view = memoryview(raw)
    return b'"model"' in bytes(view[:_ROLE_BYTES]) or b'"model"' in bytes(view[-_ROLE_BYTES:])


def _parts_of_model(raw: Raw) -> list[Raw] | None:
    try:
        content = _decode_bare(raw)
    except _PROBLEMS:
        return None
    return content.parts if content.role == "model" else None


def _of_parts(parts: list[Raw]) -> Raw:
    return Raw(b'{"parts":[%b],"role":"model"}' % b",".join(map(bytes, parts)))


def _has_text(piece: _Piece) -> bool:
    return is_given(piece.text) and is_text(piece.text)


def _content_of(raw: Raw, work: TranslationWork) -> _Content:
    if is_text(raw):
        return _Content([_Piece(text=raw)])
    members = object_at(raw, "") if is_object(raw) else {}
    parts = members.get("parts")
    return _Content([] if parts is None else _pieces_of(parts, work), text_in(members, "role"))


def _pieces_of(raw: Raw, work: TranslationWork) -> list[_Piece]:
    """The parts in a list; a value that is not a list counts as one part."""
    listed = work.take_list(raw, "") if is_list(raw) else [raw]
    return [_piece_of(each, work) for each in listed]


def _piece_of(raw: Raw, work: TranslationWork) -> _Piece:
    """A part; a bare text counts as a part, too."""
    if is_text(raw):
        return _Piece(text=raw)
    return readable(_decode_piece, raw, work)


def _json_text(raw: Raw) -> str:
    """JSON as it came, as a text; an empty object if the value is missing."""
    return str(raw, "utf-8", "replace") if is_given(raw) else "{}"
