"""A crew of one agent of CrewAI, whose one tool is called as the prompt orders."""

import os
import sys

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


@tool("note")
def note(text: str) -> str:
    """Write a note."""
    return f"noted: {text} " + "word " * 200


llm = LLM(
    model=f"openai/{os.environ['OPENAI_MODEL']}",
    base_url=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
)
agent = Agent(
    role="worker", goal="Do the work.", backstory="You work step by step.", tools=[note], llm=llm, max_iter=20
)
task = Task(description=sys.argv[1], expected_output="A word.", agent=agent)
print(Crew(agents=[agent], tasks=[task]).kickoff())
