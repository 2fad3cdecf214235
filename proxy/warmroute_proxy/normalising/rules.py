"""The rules by name: what each takes out of a text, and who reported that it spoils prefixes.

A rule looks for its `marker` in the raw JSON of a text first, in `reach_bytes` from its beginning, so that a text
without it costs next to nothing. What its `pattern` then matches in the decoded text is taken out.

Patterns run over whole texts of clients, so each must be linear: a run of spaces is matched from its first one alone
and never given back (`(?<![ \t])[ \t]*+`). `tests/hostile/test_patterns.py` tries them.
"""

import re
from typing import Final, NamedTuple

BILLING_MARK: Final = b"x-anthropic-billing-header:"
_SYSTEM: Final = frozenset({"system"})
_SYSTEM_AND_USER: Final = frozenset({"system", "user"})


class Rule(NamedTuple):
    """One rule. `roles`: of the messages whose texts it reads. `is_default`: on where the config does not say."""

    name: str
    roles: frozenset[str]
    marker: bytes
    reach_bytes: int
    pattern: re.Pattern[str]
    is_default: bool


RULES: Final = (
    # Claude Code's first system block: `x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=sdk-cli;
    # cch=36ee5;`. `cch` is new with each request, the end of `cc_version` with each start. It tells Anthropic whom to
    # bill, and a model nothing (anthropics/claude-code#68900, sgl-project/sglang#36877, vllm-project/vllm#36829).
    Rule(
        "billing_line",
        _SYSTEM,
        BILLING_MARK,
        64,
        re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*"),
        True,
    ),
    # Claude Code from 2.1.233 sends a system message after each user's turn and tool result. Templates that move such
    # messages to the front change the prompt from there on, and by default the number does not say how full the
    # context is (ollama/ollama#18431 and #17918, anthropics/claude-code#81259, #88211 and #96101).
    Rule(
        "token_counter",
        _SYSTEM_AND_USER,
        b"total_tokens>",
        128,
        re.compile(
            r"\A\s*+(?:<system-reminder>\s*+)?<total_tokens>[\d,]++ tokens left</total_tokens>\s*+"
            r"(?:</system-reminder>\s*+)?\Z"
        ),
        True,
    ),
    # The line with the date: OpenCode's `Today's date: Sat Nov 21 2026`, Claude Code's `Today's date is 2026-11-21.`,
    # Gemini CLI's `Today's date is Saturday, November 21, 2026 ...`. It is another one after midnight
    # (anomalyco/opencode#32622). Models use it, so it stays unless the operator says otherwise.
    Rule(
        "date_line",
        _SYSTEM_AND_USER,
        b"oday's ",
        65_536,
        re.compile(
            r"^[ \t]*+(?:- )?Today's date(?: is|:)[^\n]{0,40}\b\d{4}\b[^\n]{0,80}\n?", re.IGNORECASE | re.MULTILINE
        ),
        False,
    ),
    # The same of Codex: `<current_date>2026-11-21</current_date>` (openai/codex, environment_context).
    Rule(
        "date_tag",
        _SYSTEM_AND_USER,
        b"current_date>",
        65_536,
        re.compile(r"(?<![ \t])[ \t]*+<current_date>[^<\n]{1,40}</current_date>\n?"),
        False,
    ),
)

NAMES: Final = tuple(rule.name for rule in RULES)
DEFAULT_NAMES: Final = frozenset(rule.name for rule in RULES if rule.is_default)
