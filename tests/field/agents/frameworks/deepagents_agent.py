"""A deep agent of LangChain, whose tool is called as the prompt orders."""

import os
import sys

from deepagents import create_deep_agent
from langchain_openai import ChatOpenAI


def note(text: str) -> str:
    """Write a note."""
    return f"noted: {text} " + "word " * 200


agent = create_deep_agent(
    model=ChatOpenAI(model=os.environ["OPENAI_MODEL"]), tools=[note], system_prompt="You work step by step."
)
messages = {"messages": [{"role": "user", "content": sys.argv[1]}]}
print(agent.invoke(messages, {"recursion_limit": 100})["messages"][-1].content)
