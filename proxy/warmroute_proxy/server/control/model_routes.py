"""The models that a tenant may use, in the shape that the client knows: OpenAI's, Anthropic's or Gemini's."""

from collections.abc import Callable
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from msgspec import UNSET

from warmroute_proxy.dialects.gemini import errors as gemini_errors
from warmroute_proxy.dialects.gemini import models as gemini
from warmroute_proxy.dialects.messages import errors as messages_errors
from warmroute_proxy.dialects.messages import models as messages
from warmroute_proxy.server.base.config import ModelConfig
from warmroute_proxy.server.base.config_source import LiveConfig
from warmroute_proxy.server.base.errors import error_body, no_model
from warmroute_proxy.server.control.answers import get, json_answer
from warmroute_proxy.server.control.described import described
from warmroute_proxy.server.control.models import ListOf, Model
from warmroute_proxy.server.stores.prices import Prices

_ANTHROPIC: Final = "anthropic-version"  # the header of its clients

_GOOGLE: Final = "x-goog-api-key"  # of its clients

ErrorBody = Callable[[int, str, str], bytes]


def add_models(app: FastAPI, live: LiveConfig, prices: Prices) -> None:
    """`/v1/models` and `/v1beta/models`, which is Gemini's."""

    @get(app, "/v1/models")
    @described(ListOf[Model])
    async def models(request: Request) -> Response:
        """The models that the tenant may use."""
        found = live.now.models_of(request.state.tenant)
        if _is_gemini(request):
            return json_answer(gemini.model_list([_gemini_model(model) for model in found]))
        if _ANTHROPIC in request.headers:
            return json_answer(messages.model_list([model.name for model in found]))
        return json_answer(ListOf(data=[_model(model, prices) for model in found]))

    @get(app, "/v1/models/{name:path}")
    @described(Model)
    async def model(name: str, request: Request) -> Response:
        """One model, by name or alias."""
        if _is_gemini(request):
            return _one(name, request, _gemini_model, gemini_errors.error)
        if _ANTHROPIC in request.headers:
            return _one(name, request, lambda found: messages.model_card(found.name), messages_errors.error)
        return _one(name, request, lambda found: _model(found, prices), error_body)

    for path, handler in (("/v1beta/models", models), ("/v1beta/models/{name:path}", model)):
        app.add_api_route(path, handler, methods=["GET", "HEAD"], include_in_schema=False)  # as Gemini has them

    def _one(name: str, request: Request, card: Callable[[ModelConfig], Any], error: ErrorBody) -> Response:
        found = live.now.model_of(name)
        if found is None or not request.state.tenant.may_use(found):
            problem = no_model(name, [model.name for model in live.now.models_of(request.state.tenant)])
            return Response(error(404, problem, "model_not_found"), 404, media_type="application/json")
        return json_answer(card(found))


def _is_gemini(request: Request) -> bool:
    return request.url.path.startswith("/v1beta/") or _GOOGLE in request.headers


def _model(model: ModelConfig, prices: Prices) -> Model:
    book = prices.now(model.name)
    return Model(
        id=model.name,
        rates_usd_per_mtok=book.rates.as_usd_per_mtok(),
        price_book=book.name,
        max_model_len=UNSET if model.context_tokens is None else model.context_tokens,
    )


def _gemini_model(model: ModelConfig) -> dict[str, Any]:
    return gemini.model_card(model.name, model.context_tokens)
