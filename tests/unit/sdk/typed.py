"""What a type checker knows of the clients: openai's own parameters, ours, and the overloads of `create`.

`test_typing.py` runs mypy and pyright on this file; the lines with an ignore are errors, which both confirm.
"""

from typing import assert_type

import openai
from openai import AsyncStream, Stream
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

import warmroute

client = warmroute.OpenAI(api_key="k", base_url="http://server/v1", max_retries=3, timeout=5.0, session="s")
warmroute.AsyncOpenAI(api_key="k", default_headers={"a": "b"}, guard="raise", repair=["sort-tools"], backend="litellm")
warmroute.OpenAI(max_retrys=3)  # type: ignore[call-arg]
warmroute.OpenAI(max_retries="3")  # type: ignore[arg-type]
warmroute.OpenAI(guard="loud")  # type: ignore[arg-type]

assert_type(client.chat.completions.create(model="m", messages=[]), ChatCompletion)
assert_type(client.chat.completions.create(model="m", messages=[], stream=True), Stream[ChatCompletionChunk])
assert_type(client.with_options(session="s"), warmroute.OpenAI)

wrapped = warmroute.wrap(openai.OpenAI())
assert_type(wrapped, openai.OpenAI)
assert_type(wrapped.chat.completions.create(model="m", messages=[], stream=True), Stream[ChatCompletionChunk])
assert_type(wrapped.responses.create(model="m", input="hello"), Response)
wrapped.chat.completions.create(model="m")  # type: ignore[call-overload]


async def awaited() -> None:
    """The same of clients that are awaited."""
    chunks = await warmroute.AsyncOpenAI().chat.completions.create(model="m", messages=[], stream=True)
    assert_type(chunks, AsyncStream[ChatCompletionChunk])
    wrapped_async = warmroute.wrap(openai.AsyncOpenAI())
    assert_type(await wrapped_async.chat.completions.create(model="m", messages=[]), ChatCompletion)


assert_type(warmroute.cache_of(wrapped), warmroute.Cache)
assert_type(warmroute.cache_of(warmroute.wrap(openai.AsyncOpenAI())), warmroute.AsyncCache)

receipt = warmroute.receipt_of(client.chat.completions.create(model="m", messages=[]))
assert_type(receipt, warmroute.Receipt | None)
if receipt is not None:
    assert_type(receipt["loss"], dict[str, int])
    receipt["prize_nanousd"]  # type: ignore[typeddict-item]
