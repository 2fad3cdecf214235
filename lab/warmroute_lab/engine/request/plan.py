"""Makes a `Job` of a `PromptRequest` (output limit, text of the answers, and work), or refuses the request.

An answer is planned whole before its first token. If a request forces the length of its answers (`ignore_eos`), the
answers have at most `MAX_PLANNED_TOKENS` in all. Each log probability alternative of a token counts as one token more.
"""

from collections.abc import Sequence

from warmroute_lab.engine.http.errors import Refusal
from warmroute_lab.engine.model import prompt
from warmroute_lab.engine.model.work import Work
from warmroute_lab.engine.request import text
from warmroute_lab.engine.request.job import Job
from warmroute_lab.engine.request.prompt_request import PromptRequest
from warmroute_lab.engine.settings import Settings

MAX_PLANNED_TOKENS = 1_000_000


def jobs_of(settings: Settings, requests: Sequence[PromptRequest], ranks: Sequence[int]) -> list[Job]:
    """The jobs of one request, each with its rank. Raises: Refusal."""
    counts = [max(1, prompt.tokens(request.rendered)) for request in requests]
    limits = [_output_limit(settings, request, count) for request, count in zip(requests, counts, strict=True)]
    forced = zip(requests, limits, strict=True)
    planned = sum(limit * request.n * (1 + (request.logprobs or 0)) for request, limit in forced if request.ignore_eos)
    if planned > MAX_PLANNED_TOKENS:
        raise Refusal(
            400,
            f"The answers to this request would have {planned} tokens in all; at most {MAX_PLANNED_TOKENS} are "
            "planned for one request. Ask for fewer tokens, choices, prompts or log probabilities.",
        )
    found = zip(requests, ranks, counts, limits, strict=True)
    return [_job(settings, request, rank, count, limit) for request, rank, count, limit in found]


def _job(settings: Settings, request: PromptRequest, rank: int, prompt_tokens: int, limit: int) -> Job:
    answers = [_answer(settings, request, choice, limit) for choice in range(request.n)]
    output_tokens = max(1, *(len(answer.pieces) for answer in answers))
    keys: list[int] = []
    if settings.role != "decode":
        cached_answer = answers[0].rendered() if settings.role == "aggregated" and request.n == 1 else b""
        namespace = _namespace(settings, request)
        keys = prompt.page_keys(request.rendered + cached_answer, settings.page_size, namespace, bigram=settings.bigram)
    work = Work(prompt_tokens, output_tokens, keys, width=request.n)
    job = Job(request=request, dp_rank=rank, page_size=settings.page_size, answers=answers, work=work)
    work.owner = job
    if settings.role != "prefill":
        job.fault_at = request.script.error_after_tokens
    return job


def _answer(settings: Settings, request: PromptRequest, choice: int, limit: int) -> text.ScriptedAnswer:
    asked = request.rendered[: len(request.rendered) - len(request.begun)]
    return text.answer(
        text.seed_digest(settings.seed, asked, choice),
        limit=limit,
        script=request.script,
        stops=request.stops,
        thinking=request.thinking,
        ignore_eos=request.ignore_eos,
        begun=request.begun.decode(),
    )


def _namespace(settings: Settings, request: PromptRequest) -> bytes:
    """The cache namespace of a request: its salt, and its model, because models share no cached pages."""
    models = settings.models
    model = request.model if request.model in models[1:] else models[0]
    return request.namespace + b"|" + model.encode()


def _output_limit(settings: Settings, request: PromptRequest, prompt_tokens: int) -> int:
    context = settings.context_length
    if prompt_tokens >= context:
        raise Refusal(
            400, f"The input ({prompt_tokens} tokens) is longer than the model's context length ({context} tokens)."
        )
    if request.kind == "chat" and request.max_tokens is not None and request.max_tokens > context:
        wanted = f"max_completion_tokens is too large: {request.max_tokens}."
        raise Refusal(400, f"{wanted}This model supports at most {context} completion tokens.")
    if request.max_tokens is not None and prompt_tokens + request.max_tokens > context:
        total = prompt_tokens + request.max_tokens
        raise Refusal(
            400,
            f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested "
            f"a total of {total} tokens: {prompt_tokens} tokens from the input messages and {request.max_tokens} "
            "tokens for the completion. Please reduce the number of tokens in the input messages or the "
            "completion to fit within the limit.",
        )
    if settings.role == "prefill":
        return 1
    return request.max_tokens if request.max_tokens is not None else context - prompt_tokens
