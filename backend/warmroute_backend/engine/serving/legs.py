"""The two legs of a PD request, as the engine of one sees its own: what it wants, and how it says that it failed.

A leg that ends badly before its first token is a 500, with SGLang's words around the problem.
"""

from warmroute_backend.engine.http.errors import Refusal
from warmroute_backend.engine.model.work import Phase, Role
from warmroute_backend.engine.request.ask import Ask
from warmroute_backend.engine.request.job import Job
from warmroute_backend.engine.serving.bootstrap import Meet

ABORTED = "Aborted by AbortReq."


def lacking(role: Role, ask: Ask) -> Refusal | None:
    """Why this request is none of a PD engine's."""
    if role == "aggregated":
        return None
    if ask.room is None:
        message = "Invalid request: Disaggregated request received without bootstrap room id."
        return Refusal(400, f"{message} req.rid={ask.rid!r}")
    if ask.room <= 0:
        return Refusal(400, f"Invalid request: bootstrap_room must be positive, got {ask.room}. req.rid={ask.rid!r}")
    if role == "decode" and ask.bootstrap_host is None:
        return Refusal(
            400, f"Invalid request: Disaggregated request received without bootstrap host. req.rid={ask.rid!r}"
        )
    return None


def mismatch(job: Job, meet: Meet, dp_size: int) -> str | None:
    """Why a prefill job cannot serve the decode leg that has come."""
    expected = meet.prefill_dp_rank
    if expected is None:
        expected = job.room % dp_size
    if expected != job.dp_rank:
        return f"follow_bootstrap_room conflict: rank {job.dp_rank} is not {expected}"
    if meet.prompt_tokens != job.work.prompt_tokens:
        return "bootstrap_room mismatch: the two legs have different prompts"
    return None


def waits(role: Role, job: Job) -> bool:
    """Whether a leg is still without what its partner has to give."""
    phase = job.work.phase
    if role == "decode":
        return phase in (Phase.NEW, Phase.WAITING, Phase.ALLOCATED)
    return role == "prefill" and phase is Phase.NEW


def failed(role: Role, job: Job, problem: str) -> Refusal:
    """How a leg tells its client that the hand-over did not come about."""
    name = "decode_req.req" if role == "decode" else "req"
    stage = "Decode transfer" if role == "decode" else f"Prefill {'bootstrap' if waits(role, job) else 'transfer'}"
    message = f"{stage} failed for request rank={job.dp_rank} {name}.rid={job.rid!r} {name}.bootstrap_room={job.room}"
    return Refusal(500, f"{message} with exception KVTransferError(bootstrap_room={job.room}): {problem}")
