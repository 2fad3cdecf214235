"""Reads the items of a request's input one by one: each becomes a chat message, or a piece of one.

If chat has no place for an item, the model gets the item's texts, and the item is counted by its type. Only a
reference to another item (`item_reference`) is refused: nothing is stored, so the conversation would lack the item.
"""

from enum import Enum
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from warmroute.contract.compactions import SUMMED_UP
from warmroute_proxy.dialects.call_extras import call_of, parted
from warmroute_proxy.dialects.chat_draft import EMPTY, MessageDraft, Opens
from warmroute_proxy.dialects.content import (
    cleaned,
    content_of,
    data_text,
    foreign_image,
    given_image,
    is_address,
    is_given,
    readable,
    text_of,
)
from warmroute_proxy.dialects.foreign import UNTYPED, not_shown, texts_in
from warmroute_proxy.dialects.raw_json import (
    NOTHING,
    BadRequest,
    ChatPart,
    encode,
    in_list,
    is_list,
    is_object,
    is_text,
    json_as_text,
    object_at,
    text_in,
)
from warmroute_proxy.dialects.responses.client_tools import PATCH, SHELL, WITH_OUTPUTS, patch_text, shell_text
from warmroute_proxy.dialects.responses.settings import UPDATE
from warmroute_proxy.dialects.responses.tools import INPUT, SEARCH, chat_name
from warmroute_proxy.dialects.tool_arguments import NO_OBJECT, object_text
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.normalising.texts import Texts

# The client's item that asks for a summary of its conversation, and the message that asks the model for it.

TRIGGER: Final = "compaction_trigger"
_ASKED: Final = (
    "Sum up this conversation for somebody who goes on with it and has not seen it. Say what the user wants, what was "
    "done, found and decided, with the names of files, commands and values that matter, and what is left to do. "
    "Answer with the summary alone, and call no tools."
)
PROMPT: Final = encode({"role": "user", "content": _ASKED})


_ROLES: Final = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}
_COMPACTED: Final = frozenset({"compaction", "compaction_summary", "context_compaction"})
_EMPTY_BYTES: Final = len(b'""')

_CIPHER: Final = "gAAAA"
"""The beginning of texts that OpenAI has encrypted, which are dropped. Codex also puts a model's messages to other
agents into `encrypted_content`. If the model is behind this proxy, these messages are plain text, and are read.
"""

MAX_CALL_ID_CHARS: Final = 256  # a longer id is hashed: other proxies put a thought's signature into it


class _Item(msgspec.Struct):
    """The members that are read of an item of any type."""

    type: str = "message"
    id: str | None = None
    role: str | None = None
    content: Raw = Raw()
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Raw = Raw()
    input: Raw = Raw()
    action: Raw = Raw()
    operation: Raw = Raw()
    output: Raw = Raw()
    status: Raw = Raw()
    tools: Raw = Raw()
    encrypted_content: str | None = None


class _Piece(msgspec.Struct):
    """A part of content."""

    type: str = ""
    text: Raw = Raw()
    refusal: Raw = Raw()
    image_url: Raw = Raw()
    detail: Raw = Raw()
    encrypted_content: Raw = Raw()
    file_data: Raw = Raw()
    filename: Raw = Raw()


_decode_item: Final = msgspec.json.Decoder(_Item).decode
_decode_piece: Final = msgspec.json.Decoder(_Piece).decode
_decode_parts: Final = msgspec.json.Decoder(list[_Piece]).decode
_decode_list: Final = msgspec.json.Decoder(list[Raw]).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_PROBLEMS: Final = (msgspec.DecodeError, ValueError, RecursionError)
_TEXTS: Final = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})
_IMAGES: Final = frozenset({"input_image", "image_url", "computer_screenshot"})
_DETAILS: Final = {"low": "low", "high": "high", "original": "high"}
"""How closely a model looks at an image, in chat's terms. Chat's default is `auto`, too."""

_FILES: Final = frozenset({"input_file", "input_audio", "input_video", "file"})


class Kind(Enum):
    """What an item does to the open message of the model, which is joined from several items."""

    MESSAGE = 1  # a message of the user or system: ends the model's message
    RESULT = 2  # the result of a call: ends the model's message, too
    REASONING = 3
    TEXT = 4
    CALL = 5
    NOTHING = 6  # adds no message to chat
    TRIGGER = 7  # asks for a summary of the conversation
    UPDATE = 8  # changes settings of the answers after it


_ORDERS: Final = {TRIGGER: Kind.TRIGGER, UPDATE: Kind.UPDATE}


class InChat(NamedTuple):
    """One item in chat. `json`: a whole message, or the item's piece of the model's message: reasoning, content, call;
    or the item itself, if it changes settings.

    `call_id`: the id of a call, or of the call that a result answers. `dropped`: types of the item and its parts that
    the model does not see as they came. `images`: the images of a result, as parts. `tools`: the tool definitions in
    the item. `applied` and `off`: as in `Texts`.
    """

    kind: Kind
    json: bytes
    call_id: str
    dropped: tuple[str, ...]
    images: bytes
    tools: tuple[bytes, ...]
    applied: frozenset[str]
    off: frozenset[str]

    @property
    def size_bytes(self) -> int:
        return len(self.json) + len(self.images) + sum(map(len, self.tools))


class ItemReading(MessageDraft):
    def __init__(self, seal: Opens, texts: Texts, work: TranslationWork, *, is_late: bool) -> None:
        super().__init__(texts, work, is_late=is_late)
        self._seal = seal

    def read(self, raw: Raw, path: str) -> InChat:
        if is_text(raw):
            return self._of("user", [{"type": "text", "text": raw}])
        item = self._item(raw)
        item.call_id, item.id = _bounded(item.call_id), _bounded(item.id)
        kind = item.type
        if kind == "message":
            return self._message(item, raw, path)
        if kind.endswith("_output"):
            return self._result(item, path)
        if kind.endswith("_call"):
            return self._call(item, raw)
        if kind == "reasoning":
            return self._reason(item, path)
        if kind == "agent_message":
            return self._of("user", self._pieces(item.content, f"{path}.content", "user"))
        if kind in _COMPACTED:
            return self._compacted(item)
        if kind == "additional_tools":
            return self._made(Kind.NOTHING, tools=self._defined(item.tools))
        if kind in _ORDERS:
            return self._made(_ORDERS[kind], bytes(raw))
        if kind == "item_reference":
            problem = "refers to an item, and nothing is stored here: set store to false, or send the item itself"
            raise BadRequest(path, problem)
        return self._foreign(item, raw)

    def _item(self, raw: Raw) -> _Item:
        """Decode an item, leaving out members whose values have a wrong type."""
        try:
            return _decode_item(raw)
        except _PROBLEMS:
            item = readable(_decode_item, raw, self.work)
            self.dropped.append(item.type if is_object(raw) else UNTYPED)
            return item

    def _made(
        self, kind: Kind, json: bytes = b"", call_id: str = "", images: bytes = b"", tools: tuple[bytes, ...] = ()
    ) -> InChat:
        return InChat(kind, json, call_id, tuple(self.dropped), images, tools, *self.texts.scope())

    def _message(self, item: _Item, raw: Raw, path: str) -> InChat:
        role = _ROLES.get(item.role or "")
        if role is None:
            if item.role is None and not is_given(item.content):
                return self._foreign(item, raw)
            self.dropped.append(item.role or UNTYPED)
            role = "user"
        return self._of(role, self._pieces(item.content, f"{path}.content", role))

    def _of(self, role: str, parts: list[ChatPart]) -> InChat:
        parts = [piece for piece in parts if piece["type"] != "text" or len(memoryview(piece["text"])) > _EMPTY_BYTES]
        left = cleaned(parts, role, self.texts) if role != "assistant" else parts
        if not left:
            if not self.texts.applied:
                self.dropped.append(EMPTY)
            return self._made(Kind.NOTHING)
        if role == "assistant":
            return self._made(Kind.TEXT, encode(content_of(left)))
        return self._made(Kind.MESSAGE, in_list(self.message_with(role, left)))

    def _reason(self, item: _Item, path: str) -> InChat:
        """Reasoning: the text that this proxy has sealed (encrypted); without one, the item's plain text."""
        text = self._seal.open(item.encrypted_content) if item.encrypted_content else None
        if not text and is_given(item.content):
            parts = self._pieces(item.content, f"{path}.content", "assistant")
            text = "".join([_plain(piece["text"]) for piece in parts if piece["type"] == "text"])
        if not text:
            self.dropped.append("reasoning")
            return self._made(Kind.NOTHING)
        return self._made(Kind.REASONING, encode(text)[1:-1])

    def _compacted(self, item: _Item) -> InChat:
        """A summary that this proxy has sealed; another provider's summary cannot be opened, and is dropped."""
        text = self._seal.open(item.encrypted_content) if item.encrypted_content else None
        if not text:
            self.dropped.append(item.type)
            return self._made(Kind.NOTHING)
        return self._made(Kind.MESSAGE, encode({"role": "user", "content": f"{SUMMED_UP}{text}"}))

    def _call(self, item: _Item, raw: Raw) -> InChat:
        """A call. If only OpenAI defines the tool and the client runs it, the tool is named after the item's type."""
        name, call_id, given = item.name, item.call_id, item.arguments
        if item.type == "custom_tool_call":
            arguments = encode({INPUT: _text_or_json(item.input)}).decode()
        elif item.type in ("function_call", "tool_search_call"):
            name = SEARCH if item.type == "tool_search_call" else name
            call_id = call_id or (item.id if item.type == "function_call" else None)
            arguments = self._arguments(given)
        else:
            action = next((each for each in (item.action, item.operation) if is_given(each)), None)
            if not call_id or action is None:
                return self._foreign(item, raw)
            if item.type not in WITH_OUTPUTS:
                self.dropped.append(item.type)
            name, arguments = item.type.removesuffix("_call"), self._arguments(action)
        if not call_id or not name:
            self.dropped.append(item.type)
            return self._made(Kind.NOTHING)
        call = call_of(call_id, chat_name(name, item.namespace), arguments)
        return self._made(Kind.CALL, encode(call), call["id"])

    def _arguments(self, given: Raw) -> str:
        """Arguments as the text of a JSON object; a value that is not an object is put into one."""
        text = _decode_text(given) if is_given(given) and is_text(given) else bytes(given).decode("utf-8", "replace")
        found = object_text(text)
        if found is not text and found != "{}":
            self.dropped.append(NO_OBJECT)
        return found

    def _result(self, item: _Item, path: str) -> InChat:
        """The result of a call. Its images follow the last result: a tool's message has no place for images."""
        kind = item.type
        tools: tuple[bytes, ...] = ()
        if kind == "tool_search_output":
            tools = self._defined(item.tools)
            parts = [text_of(f"Tools available: {', '.join(_names(tools)) or 'none'}")]
        elif kind == f"{SHELL}_call_output" and (ran := shell_text(item.output, self.work)) is not None:
            parts = [text_of(ran)]
        elif kind == f"{PATCH}_call_output":
            parts = [text_of(patch_text(_plain(item.status), _plain(item.output)))]
        else:
            if kind not in ("function_call_output", "custom_tool_call_output"):
                self.dropped.append(kind)
            parts = self._output(item.output, f"{path}.output")
        texts = [piece for piece in parts if piece["type"] == "text"]
        images = [piece for piece in parts if piece["type"] != "text"]
        call_id, _ = parted(item.call_id or item.id or "")
        text = b"\\n".join([encode(piece["text"])[1:-1] for piece in texts])  # many servers take no list of texts here
        json = b'%b"%b"}' % (result_begins(call_id), text)
        return self._made(Kind.RESULT, json, call_id, in_list(images), tools)

    def _output(self, raw: Raw, path: str) -> list[ChatPart]:
        """The parts of a tool's output, which may be a text, parts, one image, or any JSON."""
        if not is_given(raw):
            return []
        if is_text(raw) or is_list(raw):
            return self._pieces(raw, path, "tool")
        if memoryview(raw)[0] == ord("{") and text_in(object_at(raw, path), "type") in {*_IMAGES, "image"}:
            return self._pieces(Raw(b"[%b]" % bytes(raw)), path, "tool")
        return [text_of(bytes(raw).decode("utf-8", "replace"))]

    def _defined(self, raw: Raw) -> tuple[bytes, ...]:
        try:
            found = _decode_list(raw) if is_given(raw) else []
        except _PROBLEMS:
            return ()
        self.work.take(len(found))
        return tuple(bytes(each) for each in found if is_object(each))

    def _foreign(self, item: _Item, raw: Raw) -> InChat:
        """An item of unknown type, or of a tool that only OpenAI runs: the texts in it."""
        self.dropped.append(item.type)
        text = self._texts_in(raw)
        if not text:
            return self._made(Kind.NOTHING)
        role = _ROLES.get(item.role or "") or ("assistant" if item.type.endswith("_call") else "user")
        return self._of(role, [text_of(text)])

    def _pieces(self, raw: Raw, path: str, role: str) -> list[ChatPart]:
        """The parts of content that is a text or a list. Images are kept only for users and tools."""
        if not is_given(raw):
            return []
        if is_text(raw):
            return [{"type": "text", "text": raw}]
        if not is_list(raw):
            self.dropped.append(UNTYPED)
            return [{"type": "text", "text": json_as_text(raw)}]
        try:
            pieces = _decode_parts(raw)
        except _PROBLEMS:
            pieces = [_piece_of(each, self.work) for each in _decode_list(raw)]
        self.work.take(len(pieces))
        found: list[ChatPart] = []
        raws: list[Raw] = []
        for at, piece in enumerate(pieces):
            where = f"{path}[{at}]"
            known = self._piece(piece, where, role)
            if known is None:
                raws = raws or _decode_list(raw)
                known = self._unknown(raws[at], piece.type, role)
            found += known
        return found

    def _unknown(self, raw: Raw, kind: str, role: str) -> list[ChatPart]:
        """A part of unknown type: an image in another API's shape, or the texts in it."""
        image = foreign_image(object_at(raw, "")) if is_object(raw) and role in ("user", "tool") else None
        if image is not None:
            return [image]
        self.dropped.append(kind)
        text = self._texts_in(raw)
        return [text_of(text or not_shown("image"))] if text or "image" in kind else []

    def _texts_in(self, raw: Raw) -> str:
        return texts_in(object_at(raw, ""), self.work) if is_object(raw) else ""

    def _piece(self, piece: _Piece, path: str, role: str) -> list[ChatPart] | None:
        """A part in chat's terms; None if its type is unknown. A part that is not shown is counted in `dropped`."""
        kind = piece.type
        text = piece.refusal if kind == "refusal" else piece.text
        if (kind in _TEXTS or kind in ("refusal", "")) and is_given(text) and is_text(text):
            return [{"type": "text", "text": text}]
        if kind == "encrypted_content":
            opened = _plain(piece.encrypted_content)
            if opened and not opened.startswith(_CIPHER):
                return [text_of(opened)]
        elif kind in _IMAGES:
            image = self._image(piece.image_url, f"{path}.image_url", role)
            if image is not None and role in ("user", "tool"):
                detail = _DETAILS.get(_plain(piece.detail))
                return [{**image, "image_url": {**image["image_url"], "detail": detail}} if detail else image]
        elif kind == "input_file" and is_given(piece.file_data):
            file = data_text(_plain(piece.file_data))
            name = _plain(piece.filename)
            if file is not None:
                return [text_of(f"{name}\n{file}" if name else file)]
        if kind in _IMAGES or kind in _FILES:
            self.dropped.append(kind)
            return [text_of(not_shown(kind.removeprefix("input_")))]
        return None

    def _image(self, raw: Raw, path: str, role: str) -> ChatPart | None:
        """An image; None if no engine here could load it, for example because only OpenAI has the file.

        A tool may write anything as an image, and its output stays in the history. So only in a user's message, a text
        that is not an address is refused.
        """
        if not is_given(raw):
            return None
        if memoryview(raw)[0] == ord("{"):
            raw = object_at(raw, path).get("url", NOTHING)
        url = _decode_text(raw) if is_text(raw) else ""
        if not url or (role != "user" and not is_address(url) and not url[:5].lower().startswith("data:")):
            return None
        return given_image(url, path)


def _bounded(call_id: str | None) -> str | None:
    """The id of a call, with a hash in the place of an id that is too long."""
    if call_id is None or len(call_id) <= MAX_CALL_ID_CHARS or len(parted(call_id)[0]) <= MAX_CALL_ID_CHARS:
        return call_id
    return f"call_{sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _piece_of(raw: Raw, work: TranslationWork) -> _Piece:
    """Decode a part; a plain string in the list is a part of text."""
    if is_text(raw):
        return _Piece(text=raw)
    return readable(_decode_piece, raw, work)


def result_begins(call_id: str) -> bytes:
    return b'{"role":"tool","tool_call_id":%b,"content":' % encode(call_id)


def _names(tools: tuple[bytes, ...]) -> list[str]:
    found: list[str] = []
    for raw in tools:
        tool = object_at(raw, "tools")
        name = text_in(tool, "name")
        inner = tool.get("tools")
        if text_in(tool, "type") == "namespace" and inner is not None and is_list(inner):
            listed = [object_at(each, "tools") for each in _decode_list(inner) if is_object(each)]
            found += [chat_name(text_in(each, "name"), name) for each in listed]
        else:
            found.append(name)
    return found


def _plain(text: Raw) -> str:
    """Decode a text; any other value gives an empty text."""
    return _decode_text(text) if is_given(text) and is_text(text) else ""


def _text_or_json(raw: Raw) -> str:
    return _plain(raw) or (bytes(raw).decode("utf-8", "replace") if is_given(raw) and not is_text(raw) else "")
