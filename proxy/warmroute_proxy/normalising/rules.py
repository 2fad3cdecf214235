"""The normalising rules by name: the text that each removes, and the issues that say how it spoils prefixes.

A rule first looks for its `marker` in the first `reach_bytes` of a text's raw JSON, so a text without the marker costs
next to nothing. If the marker is there, `without` gets the decoded text. A marker has none of the characters that some
JSON encoders escape: `<`, `>`, `&` and `'`.

The text comes from a client, and up to 2 MB of it are read in the event loop. So a rule looks for plain words, at most
`MAX_FOUND` times, and tries its pattern only there. A pattern is possessive (`*+`) or bounded.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

BILLING_MARK: Final = b"x-anthropic-billing-header:"
MAX_FOUND: Final = 64
MAX_INDENT_CHARS: Final = 256
_SYSTEM: Final = frozenset({"system"})
_SYSTEM_AND_USER: Final = frozenset({"system", "user"})


class Rule(NamedTuple):
    """One rule. `roles`: the roles of the messages that it reads. `without`: returns a text without the rule's matches.

    `is_default`: whether the rule is on if the config does not name any rules.
    """

    name: str
    roles: frozenset[str]
    marker: bytes
    reach_bytes: int
    without: Callable[[str], str]
    is_default: bool


_BILLING_LINE: Final = re.compile(r"x-anthropic-billing-header:[^\n]*+\n*+")
_COUNTER: Final = re.compile(
    r"\s*+(?:<system-reminder>\s*+)?<total_tokens>[\d,]++ tokens left</total_tokens>\s*+(?:</system-reminder>\s*+)?"
)
_DATE_LINE: Final = re.compile(
    r"today's date(?: is|:)(?:(?!\b\d{4}\b)[^\n]){0,40}\b\d{4}\b[-\d]{0,6} ?(?:\([^()\n]{0,80}\))?\.?[ \t\r]{0,8}"
    r"(?:\n|\Z)",
    re.IGNORECASE,
)
_DATE_TAG: Final = re.compile(r"<current_date>[^<\n]{1,40}</current_date>\n?")
_LIST_MARK: Final = "- "


def _without_billing_line(text: str) -> str:
    found = _BILLING_LINE.match(text)
    return text if found is None else text[found.end() :]


def _without_counter(text: str) -> str:
    return text if _COUNTER.fullmatch(text) is None else ""


def _without_places(
    word: str, before: int, span_at: Callable[[str, int, int], tuple[int, int] | None], text: str
) -> str:
    """A text without the spans that `span_at` finds around each occurrence of a word.

    `span_at`: takes the text, the end of the last span, and the position `before` characters in front of the word. It
    returns the beginning and end of the span there, or None.
    """
    left_texts: list[str] = []
    ended = 0
    at = text.find(word)
    for _ in range(MAX_FOUND):
        if at < 0:
            break
        found = span_at(text, ended, at - before)
        if found is not None:
            begins, ends = found
            left_texts.append(text[ended:begins])
            ended = ends
        at = text.find(word, max(at + 1, ended))
    return "".join([*left_texts, text[ended:]]) if left_texts else text


def _date_line(text: str, ended: int, at: int) -> tuple[int, int] | None:
    """The span of a line that states today's date, possibly after spaces and a list mark; None if `at` has none."""
    found = _DATE_LINE.match(text, at) if at >= ended else None
    if found is None:
        return None
    before = text[max(ended, at - MAX_INDENT_CHARS) : at]
    begins = at - len(before) + before.rfind("\n") + 1
    indent = text[begins:at].removesuffix(_LIST_MARK)
    is_line = begins == 0 or text[begins - 1] == "\n"
    return (begins, found.end()) if is_line and not indent.strip(" \t") else None


def _date_tag(text: str, ended: int, at: int) -> tuple[int, int] | None:
    found = _DATE_TAG.match(text, at)
    if found is None:
        return None
    before = text[max(ended, at - MAX_INDENT_CHARS) : at]
    return at - len(before) + len(before.rstrip(" \t")), found.end()


RULES: Final = (
    # Claude Code's first system block: `x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=sdk-cli;
    # cch=36ee5;`. `cch` changes with each request, and the end of `cc_version` with each start of the program. The
    # block tells Anthropic whom to bill, and means nothing to a model (anthropics/claude-code#68900,
    # sgl-project/sglang#36877, vllm-project/vllm#36829).
    Rule("billing_line", _SYSTEM, BILLING_MARK, 64, _without_billing_line, True),
    # From 2.1.233, Claude Code sends a system message with a token count after each user's turn and tool result. A
    # template that moves system messages to the front changes the prompt from there on. The count is of little use: by
    # default it does not say how full the context is (ollama/ollama#18431 and #17918, anthropics/claude-code#81259,
    # #88211 and #96101).
    Rule("token_counter", _SYSTEM_AND_USER, b"total_tokens", 128, _without_counter, True),
    # The line with the date: OpenCode's `Today's date: Sat Nov 21 2026`, Claude Code's `Today's date is 2026-11-21.`,
    # Gemini CLI's `Today's date is Saturday, November 21, 2026 ...`. The line changes at midnight
    # (anomalyco/opencode#32622). Models use the date, so the rule is off by default.
    Rule("date_line", _SYSTEM_AND_USER, b"s date", 65_536, partial(_without_places, "oday's ", 1, _date_line), False),
    # Codex writes: `<current_date>2026-11-21</current_date>` (openai/codex, environment_context).
    Rule(
        "date_tag",
        _SYSTEM_AND_USER,
        b"current_date",
        65_536,
        partial(_without_places, "<current_date>", 0, _date_tag),
        False,
    ),
)

LATE_SYSTEM: Final = "late_system"
"""A rule that changes a role: a system message that is not the first message becomes a user's message in its place. It
is for models whose template refuses late system messages. Moving one to the front would change the prompt after it.
"""


def reminded(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"


NAMES: Final = (*(rule.name for rule in RULES), LATE_SYSTEM)
DEFAULT_NAMES: Final = frozenset(rule.name for rule in RULES if rule.is_default)
