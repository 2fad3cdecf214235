"""The JSON of answers: usage, whole bodies, and the parts of stream chunks.

A request has one job (`job.py`) per prompt, and a job has one answer per choice (`n`). The choices of all jobs of a
request are numbered in one sequence.
"""

from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

import msgspec

from warmroute_lab.engine.model.prompt import TOKEN_BYTES
from warmroute_lab.engine.request.job import Job, JobTokens
from warmroute_lab.engine.request.text import CONTENT, EOS_TOKEN_ID, REASONING, Piece, ScriptedAnswer

encode = msgspec.json.Encoder().encode
Json = dict[str, Any]


def usage(jobs: Sequence[Job]) -> Json:
    """The usage object of a request. Each prompt counts once; the tokens of its choices are summed."""
    sums = JobTokens(*(sum(column) for column in zip(*(job.counts() for job in jobs), strict=True)))
    return _usage(sums, cache_report=True)


def choice_usage(job: Job, index: int, *, cache_report: bool) -> Json:
    """The usage so far, sent with a chunk of one choice."""
    completion_tokens = job.answers[index].count(job.work.generated)
    return _usage(job.counts()._replace(completion=completion_tokens), cache_report=cache_report)


def _usage(counts: JobTokens, *, cache_report: bool) -> Json:
    return {
        "prompt_tokens": counts.prompt,
        "total_tokens": counts.prompt + counts.completion,
        "completion_tokens": counts.completion,
        "prompt_tokens_details": {"cached_tokens": counts.cached} if cache_report else None,
        "reasoning_tokens": counts.reasoning,
        "completion_tokens_details": {"reasoning_tokens": counts.reasoning} if counts.reasoning else None,
    }


def cached_details(job: Job) -> Json | None:
    """The cached tokens by tier, if any were cached. A decode engine reports the tiers of its prefill engine."""
    cached = job.counts().cached
    if not cached:
        return None
    host, storage = job.work.cached_host_tokens, job.work.cached_storage_tokens
    details: Json = {"device": cached - host - storage, "host": host}
    if storage or job.storage_backend is not None:
        details["storage"] = storage
    if job.storage_backend is not None:
        details["storage_backend"] = job.storage_backend
    return details


def sglext(jobs: Sequence[Job]) -> Json | None:
    """SGLang's `sglext` object; None if not requested or if it is empty. A batch has the object of its first prompt."""
    details = cached_details(jobs[0]) if jobs[0].request.cached_details else None
    return None if details is None else {"cached_tokens_details": details}


def weights(generated: int) -> Json:
    return {"weight_version": "default", "weight_versions": [{"version": "default", "start": 0, "end": generated}]}


def choices_of(jobs: Sequence[Job]) -> Iterator[tuple[int, Job, int]]:
    """Every choice of a request: its index in the answer, its job, and its number within the job."""
    index = 0
    for job in jobs:
        for number in range(len(job.answers)):
            yield index, job, number
            index += 1


def chat_body(jobs: Sequence[Job], aborted: frozenset[Job]) -> bytes:
    choices = [_chat_choice(job, i, aborted=job in aborted) for _, job, i in choices_of(jobs)]
    return _body("chat.completion", jobs, choices)


def completion_body(jobs: Sequence[Job], aborted: frozenset[Job]) -> bytes:
    choices: list[Json] = []
    for index, job, i in choices_of(jobs):
        answer, generated = job.answers[i], job.work.generated
        logprobs = completion_logprobs(job, answer.pieces[:generated])
        choice = {"index": index, "text": answer.text(CONTENT, generated), "logprobs": logprobs}
        choices.append({**choice, **ending(answer, aborted=job in aborted)})
    return _body("text_completion", jobs, choices)


def _body(kind: str, jobs: Sequence[Job], choices: list[Json]) -> bytes:
    first = jobs[0]
    body: Json = {
        "id": first.ids[0],
        "object": kind,
        "created": first.created,
        "model": first.request.model,
        "choices": choices,
        "usage": usage(jobs),
        "metadata": weights(first.answers[0].count(first.work.generated)),
    }
    extension = sglext(jobs)
    return encode(body if extension is None else {**body, "sglext": extension})


def _chat_choice(job: Job, index: int, *, aborted: bool) -> Json:
    answer, generated = job.answers[index], job.work.generated
    calls = answer.calls(generated)
    message: Json = {
        "role": "assistant",
        "content": answer.text(CONTENT, generated),
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
    top = job.request.logprobs
    logprobs = None if top is None else {"content": [chat_logprob(p, top) for p in answer.pieces[:generated]]}
    return {"index": index, "message": message, "logprobs": logprobs, **ending(answer, aborted=aborted)}


def ending(answer: ScriptedAnswer, *, aborted: bool) -> Json:
    if aborted:
        return {"finish_reason": "abort", "matched_stop": None}
    return {"finish_reason": answer.finish_reason, "matched_stop": answer.matched_stop}


def call_id(job: Job, choice: int, index: int) -> str:
    """The id of a tool call, with a hash of the request's id: the requests of a session get different ids."""
    return f"call_{crc32(job.rid.encode()):08x}{choice:x}{index:03x}"


def completion_logprobs(job: Job, pieces: list[Piece]) -> Json | None:
    """Log probabilities in the shape of the completions endpoint, which gives -1 for every text offset."""
    top = job.request.logprobs
    if top is None:
        return None
    return {
        "text_offset": [-1] * len(pieces),
        "token_logprobs": [logprob(piece.text) for piece in pieces],
        "tokens": [piece.text for piece in pieces],
        "top_logprobs": [dict(_alternatives(piece.text, top)) for piece in pieces],
    }


def generate_item(job: Job, index: int, ended: str | None) -> Json:
    """`/generate`'s object for one choice; `ended` is None while the choice runs, else "planned" or "abort"."""
    answer, generated = job.answers[index], job.work.generated
    completion_tokens = answer.count(generated)
    meta: Json = {
        "id": job.ids[index],
        "finish_reason": _generate_ending(answer, completion_tokens, ended),
        "weight_version": "default",
        "completion_tokens": 0 if job.dropped else completion_tokens,
    }
    if ended is not None:
        meta.update(weights(completion_tokens))
    if not job.dropped:
        meta.update(_scheduled(job, job.counts()))
        meta.update(_generate_logprobs(job, answer.pieces[:generated]))
    return {
        "text": answer.text(CONTENT, generated),
        "output_ids": [token_id(piece) for piece in answer.pieces[:generated]],
        "meta_info": meta,
    }


def _scheduled(job: Job, counts: JobTokens) -> Json:
    """The members of `/generate` for a request that was scheduled."""
    return {
        "prompt_tokens": counts.prompt,
        "num_retractions": 0,
        "storage_prefetch_wait": 0.0,
        "storage_staging_wait": 0.0,
        "reasoning_tokens": counts.reasoning,
        "cached_tokens": counts.cached,
        "cached_tokens_details": cached_details(job),
        "dp_rank": None,
    }


def _generate_logprobs(job: Job, pieces: list[Piece]) -> Json:
    top = job.request.logprobs
    if top is None:
        return {}
    found: Json = {
        "input_token_logprobs": [],
        "output_token_logprobs": [[logprob(piece.text), token_id(piece), None] for piece in pieces],
        "output_token_logprobs_length": len(pieces),
    }
    if top:
        found["input_top_logprobs"] = []
        found["output_top_logprobs"] = [
            [[value, token_id(piece), None] for _, value in _alternatives(piece.text, top)] for piece in pieces
        ]
    return found


def _generate_ending(answer: ScriptedAnswer, completion_tokens: int, ended: str | None) -> Json | None:
    if ended is None:
        return None
    if ended == "abort":
        return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    if answer.finish_reason == "length":
        return {"type": "length", "length": completion_tokens}
    return {"type": "stop", "matched": EOS_TOKEN_ID if answer.matched_stop is None else answer.matched_stop}


def generate_body(jobs: Sequence[Job], aborted: frozenset[Job]) -> bytes:
    """A whole answer of `/generate`: one object, or a list of them for a batch or for several choices."""
    items = [generate_item(job, i, "abort" if job in aborted else "planned") for _, job, i in choices_of(jobs)]
    return encode(items if jobs[0].request.batch or len(items) > 1 else items[0])


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
