"""Calls of google-genai and mistralai, wrapped, and of frameworks on the transport: prints what they reported.

    python vendors.py URL NAME...

It is run by the Python of `.venv-integrations`, against a server that answers in every dialect.
"""

import asyncio
import json
import sys
from typing import Any

import warmroute


def google(url: str) -> Any:
    """Whole, streamed, and both awaited, with tools in another order each time."""
    from google import genai
    from google.genai import types

    client = warmroute.wrap(
        genai.Client(api_key="k", http_options=types.HttpOptions(base_url=url)), session="s", repair=["sort-tools"]
    )
    assert isinstance(client, genai.Client)
    tools = [
        types.Tool(function_declarations=[types.FunctionDeclaration(name=name, description="looks")])
        for name in ("look", "move")
    ]
    config = types.GenerateContentConfig(tools=tools)
    options: dict[str, Any] = {"model": "gemini-2.5-pro", "contents": "hello", "config": config}
    client.models.generate_content(**options)
    list(client.models.generate_content_stream(**options))

    async def awaited() -> None:
        await client.aio.models.generate_content(**options)
        async for _ in await client.aio.models.generate_content_stream(**options):
            pass

    asyncio.run(awaited())
    return warmroute.cache_of(client)


def mistral(url: str) -> Any:
    """Whole, streamed, and both awaited."""
    from mistralai.client import Mistral

    client = warmroute.wrap(Mistral(api_key="k", server_url=url), session="s", repair=["sort-tools"])
    assert isinstance(client, Mistral)
    tools: list[Any] = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("look", "move")]
    options: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    client.chat.complete(**options, tools=tools)
    list(client.chat.stream(**options, tools=tools[::-1]))

    async def awaited() -> None:
        await client.chat.complete_async(**options, tools=tools)
        async for _ in await client.chat.stream_async(**options, tools=tools[::-1]):
            pass

    asyncio.run(awaited())
    return warmroute.cache_of(client)


VENDORS = {"google-genai": google, "mistralai": mistral}

if __name__ == "__main__":
    cache = VENDORS[sys.argv[2]](sys.argv[1])
    report = cache.report()
    sums = (report.turns, report.turns_measured, report.prompt_tokens, report.cached_tokens, report.completion_tokens)
    print(json.dumps({"sums": sums, "internal_errors": report.internal_errors, "repairs": cache.guard.repairs}))
