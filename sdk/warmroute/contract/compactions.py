"""How a prompt says that its history was compacted: the words that agent programs put where they sum a history up.

After a compaction a program sends the same session key, system prompt and tools, and a summary in place of the history.
A fork begins the same way. Only the program's own words tell the two apart, so each mark is read from the program
itself, and a program without words of its own has none.

A mark begins a text. It stands in a user's message in front of the first answer, or in that answer: Codex keeps its
users' messages in front of the summary, goose and Gemini CLI write an answer behind it.
"""

from typing import Final, Literal, NamedTuple


class Mark(NamedTuple):
    """`words` begin a text of a message of `role`. `source`: the program, and the version in which they were read."""

    role: Literal["user", "assistant"]
    words: str
    source: str


SUMMED_UP: Final = "The conversation before this message was summed up:\n"
"""How the proxy shows the items `compaction`, `compaction_summary` and `context_compaction` of Responses to a model."""

MARKS: Final = (
    Mark("user", SUMMED_UP, "Codex 0.171.0, over Responses"),
    Mark("user", "Another language model started to solve this problem and produced a summary", "Codex 0.171.0"),
    Mark("user", "This session is being continued from a previous conversation", "Claude Code 2.1.332"),
    Mark("user", "What did we do so far?", "OpenCode 1.18.33, Kilo Code"),
    Mark("user", "<conversation-checkpoint>\n", "OpenCode 2"),
    Mark("user", "The conversation history before this point was compacted into the following summary:", "pi 1.6.0"),
    Mark("assistant", "Got it. Thanks for the additional context!", "Gemini CLI 0.61.0, Qwen Code 0.24.4"),
    Mark("user", "The conversation so far has been compacted to free up context.", "Kimi Code 2.1.0"),
    Mark("user", "<system>Previous context has been compacted.", "Kimi CLI 1.49.0"),
    Mark("user", "You are continuing a trajectory after a context compaction.", "Mistral Vibe 3.0.2"),
    Mark("assistant", "Your context was compacted", "goose, its main branch"),
    Mark("user", "The previous session was interrupted because it got too long,", "Crush, its main branch"),
    Mark("user", "Context summary:\n\n", "Cline 4.1.13"),
    Mark("user", "<SYSTEM_NOTICE>\nEarlier context was compacted.", "Cline 4.1.13"),
    Mark("user", "## Conversation Summary\n", "Roo Code 3.52.1"),
)
"""Where each stands in its program: docs/reference/harnesses.md."""
