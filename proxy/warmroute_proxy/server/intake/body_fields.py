"""Checks the members of a request body against the list of fields that the API dialect allows, and decodes them.

A `ReadPlan` says which members to read. Bodies whose members have equal names share a plan. Clients send few kinds of
bodies, so plans are cached.
"""

from typing import Any, Final

from warmroute.contract.identity import SESSION_FIELDS
from warmroute.contract.steering import REFUSED_FIELD_PREFIX, REFUSED_FIELDS
from warmroute_proxy.dialects.chat_members import chosen, has_flat
from warmroute_proxy.dialects.fields import NO_PERMISSIONS, FieldError, FieldsReader, Members, Permissions
from warmroute_proxy.dialects.openai_fields import FIELDS_OF_ROUTE
from warmroute_proxy.dialects.tool_grammars import tools_problem
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.intake.body import Body

MAX_PLANS: Final = 512  # the next plan drops all cached plans
MAX_PLAN_NAMES: Final = 64
MAX_PLAN_CHARS: Final = 1024
_OF_TOOLS: Final = frozenset({"tools", "tool_choice", "parallel_tool_calls"})
"""The members that engines refuse if the list of tools is empty."""

_EMPTY: Final = b"[] \t\r\n"
_EMPTY_BYTES: Final = 64  # the start of the list of tools, which shows whether it is empty
KEPT_DECODED: Final = frozenset({"metadata", "stream_options"})  # the intake keeps their decoded values


class ReadPlan:
    __slots__ = ("forbidden", "reader", "session_fields")

    def __init__(self, route: str, names: tuple[str, ...]) -> None:
        self.forbidden = next((n for n in names if n in REFUSED_FIELDS or n.startswith(REFUSED_FIELD_PREFIX)), None)
        self.reader = FieldsReader(FIELDS_OF_ROUTE[route], names)
        self.session_fields = tuple(name for name in SESSION_FIELDS if name in names)

    def refuse_steering(self) -> None:
        """Raises: Refusal, if a field of the body would steer an engine."""
        if self.forbidden is not None:
            problem = f"field {self.forbidden!r} is set by the proxy, not by clients; remove it"
            raise Refusal(400, problem, code="forbidden_field", param=self.forbidden)


_PLANS: Final[dict[tuple[str, tuple[str, ...]], ReadPlan]] = {}


def plan_of(route: str, names: tuple[str, ...]) -> ReadPlan:
    plan = _PLANS.get((route, names))
    if plan is None:
        plan = ReadPlan(route, names)
        if len(names) <= MAX_PLAN_NAMES and sum(map(len, names)) <= MAX_PLAN_CHARS:
            if len(_PLANS) >= MAX_PLANS:
                _PLANS.clear()
            _PLANS[route, names] = plan
    return plan


def read_members(body: Body, plan: ReadPlan, allowed: Permissions) -> Members:
    """Check and decode a body's members. Raises: Refusal, if a member may not reach an engine."""
    try:
        read = plan.reader.read(body.members, allowed)
        tools = body.members.get("tools")
        if tools is not None and bytes(memoryview(tools)[:_EMPTY_BYTES]).strip(_EMPTY) == b"":
            return read._replace(dropped=read.dropped.union(_OF_TOOLS.intersection(body.names)))
        if tools is not None:
            _check_tools(body)
    except FieldError as error:
        raise _refused(error) from None
    return read


def _check_tools(body: Body) -> None:
    """Raises: FieldError, if an engine would take long to compile the schemas of the tools, or if they or the choice
    are in another API's shape.
    """
    members = body.members
    tools, choice = bytes(members["tools"]), bytes(members.get("tool_choice", b""))
    problem = tools_problem(tools, choice)
    if problem is None and has_flat(tools):
        problem = "holds a function without the member `function`"
    if problem is not None:
        raise FieldError("tools", problem, "invalid_value")
    if chosen(choice) is not None:
        raise FieldError("tool_choice", "is not in this API's shape", "invalid_value")


def read_member(body: Body, route: str, name: str) -> Any:
    """Check and decode a member that every body of the route must have. Raises: Refusal."""
    raw = body.members.get(name)
    try:
        value = None if raw is None else FIELDS_OF_ROUTE[route][name].read(name, raw, NO_PERMISSIONS)
    except FieldError as error:
        raise _refused(error) from None
    if value is None:
        raise Refusal(400, f"the request body has no {name!r}", code="missing_field", param=name)
    return value


def _refused(error: FieldError) -> Refusal:
    return Refusal(400, str(error), code=error.code, param=error.field)
