"""The two legs of a PD request, at the prefill and the decode engine: fields that they need, messages if they fail.

If a leg fails before its first token, its client gets a 500 with SGLang's message around the problem.
"""

from warmroute_backend.costs import Role
from warmroute_lab.engine.http.errors import Refusal
from warmroute_lab.engine.model.work import Phase
from warmroute_lab.engine.request.job import Job
from warmroute_lab.engine.request.prompt_request import PromptRequest
from warmroute_lab.engine.serving.bootstrap import Meet

ABORTED = "Aborted by AbortReq."


def lacking(role: Role, request: PromptRequest) -> Refusal | None:
    """The refusal of a request that lacks a field which its PD engine needs; None if it has them all."""
    if role == "aggregated":
        return None
    if request.bootstrap_room is None:
        message = "Invalid request: Disaggregated request received without bootstrap room id."
        return Refusal(400, f"{message} req.rid={request.rid!r}")
    if request.bootstrap_room <= 0:
        return Refusal(
            400,
            f"Invalid request: bootstrap_room must be positive, got {request.bootstrap_room}. req.rid={request.rid!r}",
        )
    if role == "decode" and request.bootstrap_host is None:
        return Refusal(
            400, f"Invalid request: Disaggregated request received without bootstrap host. req.rid={request.rid!r}"
        )
    return None


def mismatch(job: Job, meet: Meet, dp_size: int) -> str | None:
    """The reason why a prefill job cannot serve the decode leg that has come; None if it can."""
    expected = meet.prefill_dp_rank
    if expected is None:
        expected = job.bootstrap_room % dp_size
    if expected != job.dp_rank:
        return f"follow_bootstrap_room conflict: rank {job.dp_rank} is not {expected}"
    if meet.prompt_tokens != job.work.prompt_tokens:
        return "bootstrap_room mismatch: the two legs have different prompts"
    return None


def waits(role: Role, job: Job) -> bool:
    phase = job.work.phase
    if role == "decode":
        return phase in (Phase.NEW, Phase.WAITING, Phase.ALLOCATED)
    return role == "prefill" and phase is Phase.NEW


def failed(role: Role, job: Job, problem: str) -> Refusal:
    """The answer to the client of a leg whose handover failed."""
    name = "decode_req.req" if role == "decode" else "req"
    stage = "Decode transfer" if role == "decode" else f"Prefill {'bootstrap' if waits(role, job) else 'transfer'}"
    identity = f"bootstrap_room={job.bootstrap_room}"
    message = f"{stage} failed for request rank={job.dp_rank} {name}.rid={job.rid!r} {name}.{identity}"
    return Refusal(500, f"{message} with exception KVTransferError({identity}): {problem}")
