"""An agent of LangChain, whose one tool is called as the prompt orders."""

import os
import sys

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI


def note(text: str) -> str:
    """Write a note."""
    return f"noted: {text} " + "word " * 200


model = ChatOpenAI(model=os.environ["OPENAI_MODEL"])
agent = create_agent(model=model, tools=[note], system_prompt="You work step by step.")
messages = {"messages": [{"role": "user", "content": sys.argv[1]}]}
print(agent.invoke(messages, {"recursion_limit": 100})["messages"][-1].content)
