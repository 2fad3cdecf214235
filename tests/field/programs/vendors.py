"""Calls with tools of google-genai and mistralai, wrapped, and of frameworks: prints what they reported.

    python vendors.py URL NAME...

It is run by the Python of `.venv-integrations`, against a server that answers in every dialect.
"""

import asyncio
import json
import sys
from typing import Any

import warmroute

FUNCTIONS: list[Any] = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("look", "move")]


def google(url: str) -> Any:
    """Whole, streamed, and both awaited, with tools in another order each time."""
    from google import genai
    from google.genai import types

    client = warmroute.wrap(
        genai.Client(api_key="k", http_options=types.HttpOptions(base_url=url)), session="s", repair=["sort-tools"]
    )
    assert isinstance(client, genai.Client)
    tools: list[Any] = [
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
    options: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    client.chat.complete(**options, tools=FUNCTIONS)
    list(client.chat.stream(**options, tools=FUNCTIONS[::-1]))

    async def awaited() -> None:
        await client.chat.complete_async(**options, tools=FUNCTIONS)
        async for _ in await client.chat.stream_async(**options, tools=FUNCTIONS[::-1]):
            pass

    asyncio.run(awaited())
    return client


def langchain(url: str) -> Any:
    """ChatOpenAI over our transport, with tools in another order where it is awaited."""
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    below = warmroute.transport(session="s", repair=["sort-tools"])
    http, http_async = http_library().Client(transport=below), http_library().AsyncClient(transport=below)
    llm = ChatOpenAI(
        model="m", base_url=f"{url}/v1", api_key="k", stream_usage=True, http_client=http, http_async_client=http_async
    )
    tools = [tool(look), tool(move)]
    bound, swapped = llm.bind_tools(tools), llm.bind_tools(tools[::-1])
    called(bound.invoke("hello").tool_calls)
    called([call for chunk in bound.stream("hello") for call in chunk.tool_calls])

    async def awaited() -> None:
        called((await swapped.ainvoke("hello")).tool_calls)
        called([call async for chunk in swapped.astream("hello") for call in chunk.tool_calls])

    asyncio.run(awaited())
    return below


def pydantic_ai(url: str) -> Any:
    """An agent that calls its tool and reads the result, whole and streamed."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    below = warmroute.transport(session="s")
    http = http_library().AsyncClient(transport=below)
    model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="k", http_client=http))
    agent = Agent(model, tools=[look, move])

    async def awaited() -> None:
        assert (await agent.run("hello")).output == "hello"
        async with agent.run_stream("hello") as answer:
            assert [text async for text in answer.stream_text()][-1] == "hello"

    asyncio.run(awaited())
    return below


def openai_agents(url: str) -> Any:
    """The OpenAI Agents SDK on a wrapped client: an agent that calls its tool and reads the result."""
    import openai
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled

    set_tracing_disabled(True)
    client = warmroute.wrap(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k"), session="s")
    model = OpenAIChatCompletionsModel(model="m", openai_client=client)
    tools = [function_tool(look), function_tool(move)]
    agent = Agent(name="a", model=model, model_settings=ModelSettings(include_usage=True), tools=tools)

    async def awaited() -> None:
        assert (await Runner.run(agent, "hello")).final_output == "hello"
        streamed = Runner.run_streamed(agent, "hello")
        async for _event in streamed.stream_events():
            pass
        assert streamed.final_output == "hello"

    asyncio.run(awaited())
    return client


def instructor(url: str) -> Any:
    """instructor, which asks for a tool, on wrapped clients: whole and streamed, waiting and awaited."""
    import openai
    from instructor import Mode, from_openai
    from pydantic import BaseModel

    class look(BaseModel):  # noqa: N801 - the name of the tool that the server calls
        """Looks."""

    client = warmroute.wrap(openai.OpenAI(base_url=f"{url}/v1", api_key="k"), session="s")
    made = from_openai(client, mode=Mode.TOOLS)
    options: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    for _ in range(2):
        assert isinstance(made.create(response_model=look, **options), look)
        assert list(made.create_partial(response_model=look, **options))
    return client


def litellm(url: str) -> Any:
    """LiteLLM with its http clients on our transport, and its aiohttp transport off."""
    import litellm as library

    below = warmroute.transport(session="s", repair=["sort-tools"])
    library.disable_aiohttp_transport = True
    library.client_session = http_library().Client(transport=below)
    library.aclient_session = http_library().AsyncClient(transport=below)
    options: dict[str, Any] = {"model": "openai/m", "api_base": f"{url}/v1", "api_key": "k"}
    options |= {"messages": [{"role": "user", "content": "hello"}], "tools": FUNCTIONS}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    called(library.completion(**options).choices[0].message.tool_calls)
    called([chunk for chunk in library.completion(**options, **streamed) if chunk.choices[0].delta.tool_calls])
    options["tools"] = FUNCTIONS[::-1]

    async def awaited() -> None:
        called((await library.acompletion(**options)).choices[0].message.tool_calls)
        chunks = [chunk async for chunk in await library.acompletion(**options, **streamed)]
        called([chunk for chunk in chunks if chunk.choices[0].delta.tool_calls])

    asyncio.run(awaited())
    return below


def llama_index(url: str) -> Any:
    """OpenAILike over our transport, with tools in another order where it is awaited."""
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    below = warmroute.transport(session="s", repair=["sort-tools"])
    http, http_async = http_library().Client(transport=below), http_library().AsyncClient(transport=below)
    llm = OpenAILike(
        model="m",
        api_base=f"{url}/v1",
        api_key="k",
        is_chat_model=True,
        is_function_calling_model=True,
        http_client=http,
        async_http_client=http_async,
    )
    tools = [FunctionTool.from_defaults(look), FunctionTool.from_defaults(move)]
    usage = {"stream_options": {"include_usage": True}}
    called(llm.get_tool_calls_from_response(llm.chat_with_tools(tools, "hello")))
    called(llm.get_tool_calls_from_response(list(llm.stream_chat_with_tools(tools, "hello", **usage))[-1]))

    async def awaited() -> None:
        called(llm.get_tool_calls_from_response(await llm.achat_with_tools(tools[::-1], "hello")))
        chunks = [chunk async for chunk in await llm.astream_chat_with_tools(tools[::-1], "hello", **usage)]
        called(llm.get_tool_calls_from_response(chunks[-1]))

    asyncio.run(awaited())
    return below


def look() -> str:
    """Looks."""
    return "seen"


def move() -> str:
    """Moves."""
    return "moved"


def called(calls: Any) -> None:
    """The library has handed on the one call of a tool."""
    assert len(calls) == 1, calls


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
