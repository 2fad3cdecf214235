"""From an `Ask` to a `Job`: the limit of its answer, its text, and the work; or a refusal.

An answer is planned whole before its first token. Bound: `MAX_PLANNED_TOKENS` for all answers of a request together,
where the request forces their length, each token counted once more for every log probability alternative.
"""

from collections.abc import Sequence

from warmroute_backend.engine.http.errors import Refusal
from warmroute_backend.engine.model import prompt
from warmroute_backend.engine.model.work import Work
from warmroute_backend.engine.request import text
from warmroute_backend.engine.request.ask import Ask
from warmroute_backend.engine.request.job import Job
from warmroute_backend.engine.settings import Settings

MAX_PLANNED_TOKENS = 1_000_000


def jobs_of(settings: Settings, asks: Sequence[Ask], ranks: Sequence[int]) -> list[Job]:
    """The jobs of one request, each on its rank; or `Refusal`."""
    counts = [max(1, prompt.tokens(ask.rendered)) for ask in asks]
    limits = [_output_limit(settings, ask, count) for ask, count in zip(asks, counts, strict=True)]
    forced = zip(asks, limits, strict=True)
    planned = sum(limit * ask.n * (1 + (ask.logprobs or 0)) for ask, limit in forced if ask.ignore_eos)
    if planned > MAX_PLANNED_TOKENS:
        raise Refusal(
            400,
            f"The answers to this request would have {planned} tokens in all; at most {MAX_PLANNED_TOKENS} are "
            "planned for one request. Ask for fewer tokens, choices, prompts or log probabilities.",
        )
    found = zip(asks, ranks, counts, limits, strict=True)
    return [_job(settings, ask, rank, count, limit) for ask, rank, count, limit in found]


def _job(settings: Settings, ask: Ask, rank: int, prompt_tokens: int, limit: int) -> Job:
    answers = [_answer(settings, ask, choice, limit) for choice in range(ask.n)]
    output_tokens = max(1, *(len(answer.pieces) for answer in answers))
    keys: list[int] = []
    if settings.role != "decode":
        cached_answer = answers[0].rendered() if settings.role == "aggregated" and ask.n == 1 else b""
        namespace = _namespace(settings, ask)
        keys = prompt.page_keys(ask.rendered + cached_answer, settings.page_size, namespace, bigram=settings.bigram)
    work = Work(prompt_tokens, output_tokens, keys, width=ask.n)
    job = Job(ask=ask, model=ask.model, dp_rank=rank, page_size=settings.page_size, answers=answers, work=work)
    work.owner = job
    if settings.role != "prefill":
        job.fault_at = ask.script.error_after_tokens
    return job


def _answer(settings: Settings, ask: Ask, choice: int, limit: int) -> text.Answer:
    asked = ask.rendered[: len(ask.rendered) - len(ask.begun)]
    return text.answer(
        text.seed_digest(settings.seed, asked, choice),
        limit=limit,
        script=ask.script,
        stops=ask.stops,
        thinking=ask.thinking,
        ignore_eos=ask.ignore_eos,
        begun=ask.begun.decode(),
    )


def _namespace(settings: Settings, ask: Ask) -> bytes:
    """The cache that a request looks into: its salt's, and of several models its own, as with an engine each."""
    models = settings.models
    model = ask.model if ask.model in models[1:] else models[0]
    return ask.namespace + b"|" + model.encode()


def _output_limit(settings: Settings, ask: Ask, prompt_tokens: int) -> int:
    context = settings.context_length
    if prompt_tokens >= context:
        message = f"The input ({prompt_tokens} tokens) is longer than the model's context length ({context} tokens)."
        raise Refusal(400, message)
    if ask.kind == "chat" and ask.max_tokens is not None and ask.max_tokens > context:
        wanted = f"max_completion_tokens is too large: {ask.max_tokens}."
        raise Refusal(400, f"{wanted}This model supports at most {context} completion tokens.")
    if ask.max_tokens is not None and prompt_tokens + ask.max_tokens > context:
        total = prompt_tokens + ask.max_tokens
        raise Refusal(
            400,
            f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested "
            f"a total of {total} tokens: {prompt_tokens} tokens from the input messages and {ask.max_tokens} "
            "tokens for the completion. Please reduce the number of tokens in the input messages or the "
            "completion to fit within the limit.",
        )
    if settings.role == "prefill":
        return 1
    return ask.max_tokens if ask.max_tokens is not None else context - prompt_tokens
