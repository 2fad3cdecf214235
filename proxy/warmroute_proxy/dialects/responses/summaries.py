"""What is asked for a summary of a conversation, and how one is told to the model that goes on from it."""

from typing import Final

from warmroute_proxy.dialects.raw_json import encode

TRIGGER: Final = "compaction_trigger"
SUMMED_UP: Final = "The conversation before this message was summed up:\n"
_ASKED: Final = (
    "Sum up this conversation for somebody who goes on with it and has not seen it. Say what the user wants, what was "
    "done, found and decided, with the names of files, commands and values that matter, and what is left to do. "
    "Answer with the summary alone, and call no tools."
)
PROMPT: Final = encode({"role": "user", "content": _ASKED})
