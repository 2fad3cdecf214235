"""An agent of Pydantic AI, whose one tool is called as the prompt orders."""

import os
import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.usage import UsageLimits

agent = Agent(OpenAIChatModel(os.environ["OPENAI_MODEL"]), instructions="You work step by step, with the tools.")


@agent.tool_plain
def note(text: str) -> str:
    """Write a note.

    Args:
        text: What to write.
    """
    return f"noted: {text} " + "word " * 200


print(agent.run_sync(sys.argv[1], usage_limits=UsageLimits(request_limit=50)).output)
