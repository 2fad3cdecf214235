"""The JSON shapes of answers: usage, whole bodies, and the pieces that stream chunks are made of."""

from typing import Any
from zlib import crc32

import msgspec

from warmroute_backend.engine.job import Job
from warmroute_backend.engine.prompt import TOKEN_BYTES
from warmroute_backend.engine.text import CONTENT, EOS_TOKEN_ID, REASONING, Answer, Piece

encode = msgspec.json.Encoder().encode
Json = dict[str, Any]


def usage(job: Job) -> Json:
    """The usage object. The prompt counts once, the choices are summed."""
    prompt_tokens = job.work.prompt_tokens
    completion_tokens = job.completion_tokens()
    reasoning = job.reasoning_tokens()
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": job.work.cached_tokens},
        "reasoning_tokens": reasoning,
        "completion_tokens_details": {"reasoning_tokens": reasoning} if reasoning else None,
    }


def cached_details(job: Job) -> Json:
    """Where the cached tokens came from. There is only the device tier in this model."""
    return {"device": job.work.cached_tokens, "host": 0}


def sglext(job: Job) -> Json:
    return {"cached_tokens_details": cached_details(job)}


def chat_body(job: Job, *, aborted: bool) -> bytes:
    """A whole chat completion."""
    body: Json = {
        "id": job.rid,
        "object": "chat.completion",
        "created": job.created,
        "model": job.model,
        "choices": [_chat_choice(job, i, aborted=aborted) for i in range(len(job.answers))],
        "usage": usage(job),
        "metadata": {"weight_version": "default"},
    }
    if job.ask.cached_details:
        body["sglext"] = sglext(job)
    return encode(body)


def _chat_choice(job: Job, index: int, *, aborted: bool) -> Json:
    answer, generated = job.answers[index], job.work.generated
    calls = answer.calls(generated)
    content = answer.text(CONTENT, generated)
    message: Json = {
        "role": "assistant",
        "content": None if calls and not content else content,
        "reasoning_content": answer.text(REASONING, generated) or None,
    }
    if calls:
        message["tool_calls"] = [
            {
                "id": call_id(job, index, i),
                "index": i,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for i, call in enumerate(calls)
        ]
    top = job.ask.logprobs
    logprobs = None if top is None else {"content": [chat_logprob(p, top) for p in answer.pieces[:generated]]}
    return {"index": index, "message": message, "logprobs": logprobs, **ending(answer, aborted=aborted)}


def ending(answer: Answer, *, aborted: bool) -> Json:
    if aborted:
        return {"finish_reason": "abort", "matched_stop": None}
    return {"finish_reason": answer.finish_reason, "matched_stop": answer.matched_stop}


def call_id(job: Job, choice: int, index: int) -> str:
    """The id of a tool call: from the request's own id, so that it differs from call to call of a session."""
    return f"call_{crc32(job.rid.encode()):08x}{choice:x}{index:03x}"


def completion_body(job: Job, *, aborted: bool) -> bytes:
    """A whole text completion."""
    choices = []
    for i, answer in enumerate(job.answers):
        pieces = answer.pieces[: job.work.generated]
        choices.append(
            {
                "index": i,
                "text": answer.text(CONTENT, job.work.generated),
                "logprobs": completion_logprobs(job, pieces),
                **ending(answer, aborted=aborted),
            }
        )
    body: Json = {
        "id": job.rid,
        "object": "text_completion",
        "created": job.created,
        "model": job.model,
        "choices": choices,
        "usage": usage(job),
        "metadata": {"weight_version": "default"},
    }
    if job.ask.cached_details:
        body["sglext"] = sglext(job)
    return encode(body)


def completion_logprobs(job: Job, pieces: list[Piece]) -> Json | None:
    top = job.ask.logprobs
    if top is None:
        return None
    offsets, at = [], 0
    for piece in pieces:
        offsets.append(at)
        at += len(piece.text)
    return {
        "text_offset": offsets,
        "token_logprobs": [logprob(piece.text) for piece in pieces],
        "tokens": [piece.text for piece in pieces],
        "top_logprobs": [dict(_alternatives(piece.text, top)) for piece in pieces],
    }


def generate_item(job: Job, index: int, ended: str | None) -> Json:
    """`/generate`'s object for one choice; `ended` is None while it runs, else "planned" or "abort"."""
    answer, generated = job.answers[index], job.work.generated
    completion_tokens = answer.count(generated)
    meta: Json = {
        "id": job.rid,
        "finish_reason": _generate_ending(answer, completion_tokens, ended),
        "prompt_tokens": job.work.prompt_tokens,
        "completion_tokens": completion_tokens,
        "cached_tokens": job.work.cached_tokens,
        "cached_tokens_details": cached_details(job),
        "weight_version": "default",
    }
    if job.ask.logprobs is not None:
        pieces = answer.pieces[:generated]
        meta["output_token_logprobs"] = [[logprob(piece.text), token_id(piece), None] for piece in pieces]
    item: Json = {
        "text": answer.text(CONTENT, generated),
        "output_ids": [token_id(piece) for piece in answer.pieces[:generated]],
        "meta_info": meta,
    }
    return item if len(job.answers) == 1 else {**item, "index": index}


def _generate_ending(answer: Answer, completion_tokens: int, ended: str | None) -> Json | None:
    if ended is None:
        return None
    if ended == "abort":
        return {"type": "abort", "message": "Aborted by AbortReq."}
    if answer.finish_reason == "length":
        return {"type": "length", "length": completion_tokens}
    return {"type": "stop", "matched": EOS_TOKEN_ID if answer.matched_stop is None else answer.matched_stop}


def generate_body(job: Job, *, aborted: bool) -> bytes:
    ended = "abort" if aborted else "planned"
    items = [generate_item(job, i, ended) for i in range(len(job.answers))]
    return encode(items[0] if len(items) == 1 else items)


# --- log probabilities: made up, the same for the same token ---------------------------------------------------------


def token_id(piece: Piece) -> int:
    return int.from_bytes(piece.text.encode()[:TOKEN_BYTES], "little")


def logprob(token: str) -> float:
    return -(1 + crc32(token.encode()) % 2000) / 1000


def chat_logprob(piece: Piece, top: int) -> Json:
    return {
        "token": piece.text,
        "bytes": list(piece.text.encode()),
        "logprob": logprob(piece.text),
        "top_logprobs": [
            {"token": token, "bytes": list(token.encode()), "logprob": value}
            for token, value in _alternatives(piece.text, top)
        ],
    }


def _alternatives(token: str, top: int) -> list[tuple[str, float]]:
    first = logprob(token)
    return [(token if i == 0 else f"{token}~{i}", first - i / 2) for i in range(top)]
