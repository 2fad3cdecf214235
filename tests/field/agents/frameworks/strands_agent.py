"""An agent of Strands, whose one tool is called as the prompt orders."""

import os
import sys

from strands import Agent, tool
from strands.models.openai import OpenAIModel


@tool
def note(text: str) -> str:
    """Write a note.

    Args:
        text: What to write.
    """
    return f"noted: {text} " + "word " * 200


client = {"api_key": os.environ["OPENAI_API_KEY"], "base_url": os.environ["OPENAI_BASE_URL"]}
model = OpenAIModel(client_args=client, model_id=os.environ["OPENAI_MODEL"])
print(Agent(model=model, tools=[note], system_prompt="You work step by step.", callback_handler=None)(sys.argv[1]))
