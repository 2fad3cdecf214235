"""An agent of the OpenAI Agents SDK by chat completions, whose one tool is called as the prompt orders."""

import os
import sys

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)


@function_tool
def note(text: str) -> str:
    """Write a note."""
    return f"noted: {text} " + "word " * 200


model = OpenAIChatCompletionsModel(os.environ["OPENAI_MODEL"], AsyncOpenAI())
agent = Agent(name="worker", instructions="You work step by step, with the tools.", tools=[note], model=model)
print(Runner.run_sync(agent, sys.argv[1], max_turns=50).final_output)
