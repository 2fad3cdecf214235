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
    return client


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
    return client


def langchain(url: str) -> Any:
    """ChatOpenAI over our transport."""
    from langchain_openai import ChatOpenAI

    below = warmroute.transport(session="s")
    http, http_async = http_library().Client(transport=below), http_library().AsyncClient(transport=below)
    llm = ChatOpenAI(
        model="m", base_url=f"{url}/v1", api_key="k", stream_usage=True, http_client=http, http_async_client=http_async
    )
    llm.invoke("hello")
    list(llm.stream("hello"))

    async def awaited() -> None:
        await llm.ainvoke("hello")
        async for _ in llm.astream("hello"):
            pass

    asyncio.run(awaited())
    return below


def pydantic_ai(url: str) -> Any:
    """An agent, whole and streamed, with and without a tool call to answer."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    below = warmroute.transport(session="s")
    http = http_library().AsyncClient(transport=below)
    agent = Agent(OpenAIChatModel("m", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="k", http_client=http)))

    async def awaited() -> None:
        for _ in range(2):
            await agent.run("hello")
            async with agent.run_stream("hello") as answer:
                async for _text in answer.stream_text():
                    pass

    asyncio.run(awaited())
    return below


def openai_agents(url: str) -> Any:
    """The OpenAI Agents SDK on a wrapped client."""
    import openai
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, set_tracing_disabled

    set_tracing_disabled(True)
    client = warmroute.wrap(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k"), session="s")
    model = OpenAIChatCompletionsModel(model="m", openai_client=client)
    agent = Agent(name="a", model=model, model_settings=ModelSettings(include_usage=True))

    async def awaited() -> None:
        for _ in range(2):
            await Runner.run(agent, "hello")
            async for _event in Runner.run_streamed(agent, "hello").stream_events():
                pass

    asyncio.run(awaited())
    return client


def instructor(url: str) -> Any:
    """instructor, which asks for a tool, on a wrapped client: two calls of two kinds of clients."""
    import openai
    from instructor import Mode, from_openai
    from pydantic import BaseModel

    class look(BaseModel):  # noqa: N801 - the name of the tool that the server calls
        """Looks."""

    plain = openai.OpenAI(base_url=f"{url}/v1", api_key="k")
    client = warmroute.wrap(plain, session="s")
    made = from_openai(client, mode=Mode.TOOLS)
    for _ in range(4):
        made.create(model="m", response_model=look, messages=[{"role": "user", "content": "hello"}])
    return client


def litellm(url: str) -> Any:
    """LiteLLM with its http clients on our transport, and its aiohttp transport off."""
    import litellm as library

    below = warmroute.transport(session="s")
    library.disable_aiohttp_transport = True
    library.client_session = http_library().Client(transport=below)
    library.aclient_session = http_library().AsyncClient(transport=below)
    options: dict[str, Any] = {"model": "openai/m", "api_base": f"{url}/v1", "api_key": "k"}
    options["messages"] = [{"role": "user", "content": "hello"}]
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    library.completion(**options)
    list(library.completion(**options, **streamed))

    async def awaited() -> None:
        await library.acompletion(**options)
        async for _ in await library.acompletion(**options, **streamed):
            pass

    asyncio.run(awaited())
    return below


def llama_index(url: str) -> Any:
    """OpenAILike over our transport."""
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    below = warmroute.transport(session="s")
    http, http_async = http_library().Client(transport=below), http_library().AsyncClient(transport=below)
    llm = OpenAILike(
        model="m",
        api_base=f"{url}/v1",
        api_key="k",
        is_chat_model=True,
        http_client=http,
        async_http_client=http_async,
    )
    ask = [ChatMessage(role="user", content="hello")]
    usage = {"stream_options": {"include_usage": True}}
    llm.chat(ask)
    list(llm.stream_chat(ask, **usage))

    async def awaited() -> None:
        await llm.achat(ask)
        async for _ in await llm.astream_chat(ask, **usage):
            pass

    asyncio.run(awaited())
    return below


def http_library() -> Any:
    """The http library of the installed openai."""
    import openai

    return sys.modules["httpx2" if openai.VERSION >= "3" else "httpx"]


VENDORS = {
    "google-genai": google,
    "mistralai": mistral,
    "langchain": langchain,
    "pydantic-ai": pydantic_ai,
    "openai-agents": openai_agents,
    "instructor": instructor,
    "litellm": litellm,
    "llama-index": llama_index,
}

if __name__ == "__main__":
    observed = VENDORS[sys.argv[2]](sys.argv[1])
    cache = warmroute.cache_of(observed)
    report = cache.report()
    sums = (report.turns, report.turns_measured, report.prompt_tokens, report.cached_tokens, report.completion_tokens)
    print(json.dumps({"sums": sums, "internal_errors": report.internal_errors, "repairs": cache.guard.repairs}))
