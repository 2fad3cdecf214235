"""An agent of Agno, whose one tool is called as the prompt orders."""

import os
import sys

from agno.agent import Agent
from agno.models.openai.like import OpenAILike


def note(text: str) -> str:
    """Write a note."""
    return f"noted: {text} " + "word " * 200


model = OpenAILike(
    id=os.environ["OPENAI_MODEL"], api_key=os.environ["OPENAI_API_KEY"], base_url=os.environ["OPENAI_BASE_URL"]
)
agent = Agent(model=model, tools=[note], instructions="You work step by step, with the tools.", telemetry=False)
print(agent.run(sys.argv[1]).content)
