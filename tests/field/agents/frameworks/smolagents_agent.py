"""A tool-calling agent of smolagents, whose one tool is called as the prompt orders."""

import os
import sys

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def note(text: str) -> str:
    """Write a note.

    Args:
        text: What to write.
    """
    return f"noted: {text} " + "word " * 200


model = OpenAIModel(
    model_id=os.environ["OPENAI_MODEL"], api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]
)
print(ToolCallingAgent(tools=[note], model=model, max_steps=20).run(sys.argv[1]))
