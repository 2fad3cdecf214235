"""Answers a request for a summary of the conversation with one item, whose summary is sealed (encrypted).

When a client sends the item back, its summary becomes a user's message (`item_reading`). So Codex compacts as it does
at OpenAI, and nothing is stored. If the model writes only reasoning, the reasoning is the summary; if it only calls a
tool, there is no summary. The request is the conversation plus one message, so most of its prompt is in the cache.
"""

from warmroute_proxy.dialects.chat_answers import Output, read_answer
from warmroute_proxy.dialects.chat_stream import Kind, TextPieces
from warmroute_proxy.dialects.raw_json import encode
from warmroute_proxy.dialects.responses.answer import Json, Response, ended, usage_of
from warmroute_proxy.dialects.responses.events import EventTranslator

_NO_SUMMARY = "it has no summary"


def _item(response: Response, summary: str) -> Json:
    if not summary:
        raise ValueError(_NO_SUMMARY)
    return {"id": response.named("cmp"), "type": "compaction", "encrypted_content": response.seal(summary)}


def whole_compaction(raw: bytes, response: Response) -> bytes:
    """Translate a whole answer, as a response or for `/v1/responses/compact`. Raises: ValueError, without a summary."""
    choice, usage = read_answer(raw)
    item = _item(response, choice.message.text() or choice.message.reasoning_content or "")
    kept_items = response.found.kept_items
    if kept_items is None:
        return encode(ended(response, [item], choice.finish_reason, usage))
    users = [{"id": response.named("msg", at), "status": "completed", **user} for at, user in enumerate(kept_items)]
    return encode(
        {"id": response.named("resp"), "object": "response.compaction", "created_at": response.created_s,
         "output": [*users, item], "usage": usage_of(usage)}
    )  # fmt: skip


class CompactionTranslator(EventTranslator):
    """Translates a streamed answer; the item's events come at the end. No request can continue the response by id."""

    def __init__(self, response: Response) -> None:
        super().__init__(response)
        self._summary = TextPieces()
        self._thoughts = TextPieces()

    def added(self, output: Output, out: list[bytes]) -> None:  # noqa: ARG002
        self._summary.pieces.append(output.text().encode())
        self._thoughts.pieces.append((output.reasoning_content or "").encode())

    def grew(self, kind: Kind, text: bytes) -> bytes | None:  # noqa: ARG002
        """Return None: `added` gathers the text, which the client gets only sealed."""
        return None

    def gathered_bytes(self) -> int:
        return super().gathered_bytes() + self._summary.size_bytes() + self._thoughts.size_bytes()

    def check(self) -> None:
        """Raises: ValueError, if there is no summary."""
        super().check()
        self._whole_item()

    def completed(self, out: list[bytes]) -> None:
        self._out = out
        item = self._whole_item()
        for event in ("response.output_item.added", "response.output_item.done"):
            self._emit(event, {"output_index": 0, "item": item})
        response = ended(self._response, [item], self.finish_reason, self.usage)
        self._emit(f"response.{response['status']}", {"response": response})

    def _whole_item(self) -> Json:
        return _item(self._response, (b"".join(self._summary.pieces) or b"".join(self._thoughts.pieces)).decode())
