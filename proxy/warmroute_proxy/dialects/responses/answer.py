"""Translates a whole chat answer to a response. Streams use its functions for items, usage and status."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from warmroute_proxy.dialects.chat_answers import CONTEXT_FULL, Output, Usage, read_answer, reason_of
from warmroute_proxy.dialects.chat_calls import Piece, arguments_object, is_cut, whole_calls
from warmroute_proxy.dialects.raw_json import encode
from warmroute_proxy.dialects.responses.client_tools import client_call
from warmroute_proxy.dialects.responses.request import ChatRequest
from warmroute_proxy.dialects.responses.tools import INPUT, called

Json = dict[str, Any]

INCOMPLETE: Final = {
    "length": "max_output_tokens", CONTEXT_FULL: "max_output_tokens", "content_filter": "content_filter",
}  # fmt: skip
"""Why a response is incomplete, by the finish reason. Its last item is incomplete, too."""


class Response(NamedTuple):
    """The inputs of a response's translation. `seal`: encrypts reasoning, so that the client can send it back."""

    receipt_id: str
    created_s: int
    found: ChatRequest
    seal: Callable[[str], str]

    def named(self, prefix: str, number: int | None = None) -> str:
        """The id of an item of the response; without a number, one for the whole response."""
        return f"{prefix}_{self.receipt_id}" if number is None else f"{prefix}_{self.receipt_id}_{number}"

    def snapshot(self, status: str, output: list[Json], **more: Any) -> Json:
        """The response object. Tools and instructions are not repeated: the client has them."""
        found = self.found
        return {
            "id": self.named("resp"), "object": "response", "created_at": self.created_s, "status": status,
            "background": False, "error": None, "incomplete_details": None, "instructions": None,
            "max_output_tokens": None, "metadata": {}, "model": found.model, "output": output,
            "parallel_tool_calls": True, "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None}, "store": False, "temperature": None,
            "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_p": None,
            "truncation": "disabled", "usage": None, "user": None, **found.echoed, **more,
        }  # fmt: skip


_decode_arguments: Final = msgspec.json.Decoder(dict[str, Any]).decode


def reasoning_item(response: Response, index: int, text: str) -> Json:
    """An item with the model's thoughts: as its summary if the client asked for a summary, otherwise as its content."""
    shown = [{"type": "summary_text" if response.found.summarised else "reasoning_text", "text": text}]
    item: Json = {"id": response.named("rs", index), "type": "reasoning"}
    item |= {"summary": shown} if response.found.summarised else {"summary": [], "content": shown}
    return {**item, "encrypted_content": response.seal(text), "status": "completed"}


def text_part(text: str) -> Json:
    return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}


def refusal_part(text: str) -> Json:
    """A part with the model's reason for refusing to answer."""
    return {"type": "refusal", "refusal": text}


def message_item(response: Response, index: int, piece: Json) -> Json:
    """A message of the model with one part: a text, or a refusal."""
    content = [piece]
    item_id = response.named("msg", index)
    return {"id": item_id, "type": "message", "status": "completed", "role": "assistant", "content": content}


def call_item(response: Response, number: int, call_id: str, name: str, arguments: str) -> Json:
    """A call of a function, of a custom tool, or of the client's tool search, shell or patches. Arguments that a model
    left out are an empty object, since OpenAI's clients decode them.
    """
    tool = called(response.found.tools, name)
    members = client_call(tool.name, arguments) if tool.is_typed else None
    if members is not None:
        return {
            "id": response.named("ctc", number), "type": f"{tool.name}_call", "status": "completed",
            "call_id": call_id, **members,
        }  # fmt: skip
    if tool.searches:
        return {
            "id": response.named("tsc", number), "type": "tool_search_call", "status": "completed",
            "call_id": call_id, "execution": "client", "arguments": arguments_object(arguments),
        }  # fmt: skip
    item: Json = {"id": response.named("ctc" if tool.custom else "fc", number)}
    item["type"] = "custom_tool_call" if tool.custom else "function_call"
    item |= {"status": "completed", "call_id": call_id, "name": tool.name}
    item |= {INPUT: custom_input(arguments)} if tool.custom else {"arguments": arguments if arguments.strip() else "{}"}
    if tool.namespace is not None:
        item["namespace"] = tool.namespace
    return item


def custom_input(arguments: str) -> str:
    """The text for a custom tool: the `input` in the arguments, else their only member, else the arguments themselves.

    Models know some of these tools by another argument, such as a `patch`.
    """
    try:
        members = _decode_arguments(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments
    found = members.get(INPUT, next(iter(members.values())) if len(members) == 1 else None)
    return found if isinstance(found, str) else arguments


def usage_of(usage: Usage) -> Json:
    """Usage in the terms of Responses, with cost and receipt beside it. Clients require each count, so cached tokens
    that were not counted are 0 here: the receipt's `estimated` names them.
    """
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached() or 0, "cache_write_tokens": usage.written()},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning()},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        **usage.receipt(),
    }


def ended(response: Response, output: list[Json], reason: str | None, usage: Usage) -> Json:
    why = INCOMPLETE.get(reason or "")
    if why is None:
        return response.snapshot("completed", output, usage=usage_of(usage))
    return response.snapshot("incomplete", output, incomplete_details={"reason": why}, usage=usage_of(usage))


def whole(raw: bytes, response: Response) -> bytes:
    """A whole answer. Raises: ValueError, if it cannot be read."""
    choice, usage = read_answer(raw)
    calls = whole_calls(choice.message.tool_calls or (), response.named("call"))
    reason = reason_of(choice.finish_reason, calls=bool(calls), cut=bool(calls) and is_cut(calls[-1].arguments))
    items = _items(response, choice.message, calls)
    if items and reason in INCOMPLETE:
        items[-1]["status"] = "incomplete"
    return encode(ended(response, items, reason, usage))


def _items(response: Response, output: Output, calls: list[Piece]) -> list[Json]:
    items: list[Json] = []
    if output.reasoning_content:
        items.append(reasoning_item(response, len(items), output.reasoning_content))
    if text := output.text():
        items.append(message_item(response, len(items), text_part(text)))
    if output.refusal:
        items.append(message_item(response, len(items), refusal_part(output.refusal)))
    items += [call_item(response, call.number, call.call_id, call.name, call.arguments) for call in calls]
    return items
