"""The words by which a prompt shows that its history was compacted: agent programs begin their summaries with them.

After a compaction, a program sends the session key, system prompt and tools of the turn before, and a summary in place
of the history. A fork (a second branch of the conversation) looks alike. Only the program's words, the *mark*, tell
compaction and fork apart. So each mark was read in the program's code, and programs without fixed words have no mark.

A mark stands at the beginning of a text: in a user's message before the first answer, or in the first answer. Codex
keeps the user's messages before the summary; goose and Gemini CLI write an answer after the summary.
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
"""docs/reference/harnesses.md names the place of each mark in its program."""
