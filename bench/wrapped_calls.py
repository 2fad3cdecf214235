"""Measures calls of one client library in this process: `python wrapped_calls.py KIND URL BYTES MESSAGES TURNS`.

A conversation grows by two messages a call, as in a program that appends to a list. Right before each call, the call is
also made with openai's own client. For each call after the first, the program prints how many microseconds more CPU
time of this process the library's call takes, including the library's threads. Langfuse changes openai's own client,
so for Langfuse the whole time of a call is printed. The program runs in the library's environment, so of this project
it imports only the SDK, and only to measure the SDK.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Call = Callable[[list[dict[str, Any]], list[dict[str, Any]]], object]


def openai_call(url: str) -> Call:
    """A call of openai's own client."""
    import openai

    client = openai.OpenAI(base_url=url, api_key="k", max_retries=0)
    return lambda messages, tools: client.chat.completions.create(model="m", messages=messages, tools=tools)  # type: ignore[arg-type]


def warmroute_call(url: str, guard: str) -> Call:
    """A call of warmroute's client, with a session."""
    import warmroute

    client = warmroute.OpenAI(base_url=url, api_key="k", max_retries=0, session="s", guard=guard)  # type: ignore[arg-type]
    return lambda messages, tools: client.chat.completions.create(model="m", messages=messages, tools=tools)  # type: ignore[arg-type]


def langfuse_call(url: str) -> Call:
    """A call of Langfuse's wrapper of openai's client, which sends its traces to the server of `url`, too."""
    root = url.removesuffix("/v1")
    os.environ.update(LANGFUSE_PUBLIC_KEY="pk", LANGFUSE_SECRET_KEY="sk", LANGFUSE_HOST=root, LANGFUSE_BASE_URL=root)
    from langfuse.openai import OpenAI

    client = OpenAI(base_url=url, api_key="k", max_retries=0)
    return lambda messages, tools: client.chat.completions.create(model="m", messages=messages, tools=tools)


def litellm_call(url: str) -> Call:
    """A call of LiteLLM's function, without callbacks."""
    import litellm

    litellm.suppress_debug_info = True
    return lambda messages, tools: litellm.completion(
        model="openai/m", messages=messages, tools=tools, api_base=url, api_key="k", max_retries=0
    )


KINDS: dict[str, Callable[[str], Call]] = {
    "openai": openai_call,
    "warmroute, guard off": lambda url: warmroute_call(url, "off"),
    "warmroute, guard on": lambda url: warmroute_call(url, "warn"),
    "langfuse": langfuse_call,
    "litellm": litellm_call,
}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{number}",
            "description": f"does {number} " * 60,
            "parameters": {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(6)}},
        },
    }
    for number in range(10)
]


def nothing(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> None:
    """A call that does nothing."""


def _cpu_us(call: Call, sent: list[dict[str, Any]]) -> float:
    began = time.process_time_ns()
    call(list(sent), TOOLS)
    return (time.process_time_ns() - began) / 1000


def costs_us(call: Call, plain: Call, size: int, count: int, turns: int) -> list[float]:
    """CPU time of each call after the first, minus that of the call `plain`, in microseconds."""
    text_bytes = max(20, (size - len(json.dumps(TOOLS))) // count)
    sent: list[dict[str, Any]] = [{"role": "system", "content": "You are brief."}]
    for at in range(count):
        words = " ".join(str(at * 7919 + number) for number in range(text_bytes // 7))
        sent.append({"role": ("user", "assistant")[at % 2], "content": words})
    found = []
    for turn in range(turns + 1):
        sent += [{"role": "assistant", "content": f"done {turn}"}, {"role": "user", "content": f"go on {turn}"}]
        plain_us = _cpu_us(plain, sent)
        found.append(_cpu_us(call, sent) - plain_us)
    return found[1:]


if __name__ == "__main__":
    kind, url, size, count, turns = sys.argv[1:]
    plain = nothing if kind in {"openai", "langfuse"} else openai_call(url)
    print(json.dumps(costs_us(KINDS[kind](url), plain, int(size), int(count), int(turns))), flush=True)
    os._exit(0)  # do not wait for what a library still has to send
