"""Each difference of the table, shown on both subjects. A row that no longer holds fails here."""

import time

import httpx
from tests.contract import differences
from tests.contract.subject import CHAT, COMPLETION, GENERATE, Subject, chat, completion, endless, generate, unique


def real(engine: Subject) -> bool:
    return engine.kind == "sglang"


def test_tokens(engine: Subject) -> None:
    count = engine.answer("/v1/tokenize", {"prompt": "0123456789" * 4})["count"]
    assert (count == 10) != real(engine)


def test_template(engine: Subject) -> None:
    """The ids of the template's marks are single tokens of SGLang's model, and text here."""
    tokens = engine.answer("/v1/tokenize", {"messages": [{"role": "user", "content": ""}]})["tokens"]
    raw = b"".join(token.to_bytes(4, "little") for token in tokens).rstrip(b"\0")
    assert (raw == b"<|user|>\n<|end|>\n<|assistant|>\n") != real(engine)


def test_script(engine: Subject) -> None:
    body = engine.answer(CHAT, chat("script", metadata={"script": {"text": "as told"}}))
    assert (body["choices"][0]["message"]["content"] == "as told") != real(engine)


def test_reasoning(engine: Subject) -> None:
    body = engine.answer(CHAT, chat("think", chat_template_kwargs={"enable_thinking": True}, max_tokens=12))
    assert (body["choices"][0]["message"]["reasoning_content"] is None) == real(engine)


def test_server_info(engine: Subject) -> None:
    facts = engine.facts()
    assert ({"engine", "engine_id", "speed", "started_at"} <= set(facts)) != real(engine)
    assert (len(facts) > 500) == real(engine)


def test_own_paths(engine: Subject) -> None:
    assert (engine.get("/engine/finished").status_code == 404) == real(engine)
    order = {"fault": "status", "status": 599}
    armed = engine.post("/engine/faults", order).status_code
    assert (armed == 404) == real(engine)
    assert (engine.post(CHAT, chat("a fault")).status_code == 599) != real(engine)


def test_other_paths(engine: Subject) -> None:
    message = {"model": "any", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
    assert engine.post("/v1/messages", message).status_code == (200 if real(engine) else 404)
    assert engine.post("/detokenize", {"tokens": [5, 6]}).status_code == (200 if real(engine) else 404)


def test_health(engine: Subject) -> None:
    """SGLang's takes a second each time; ours may on a busy machine, but not each time."""

    def took_s() -> float:
        start_s = time.monotonic()
        response = engine.get("/health")
        assert (response.status_code, response.content) == (200, b"")
        return time.monotonic() - start_s

    assert (min(took_s() for _ in range(1 if real(engine) else 10)) >= 1) == real(engine)


def test_loads_format(engine: Subject) -> None:
    head = engine.get("/v1/loads?format=prometheus").headers["content-type"]
    assert head.startswith("text/plain" if real(engine) else "application/json")


def test_left_out_members(engine: Subject) -> None:
    assert ("decode_moments" in engine.load()) == real(engine)
    assert ("embedding" in engine.get("/model_info").json()) == real(engine)


def test_meta_times(engine: Subject) -> None:
    meta = engine.answer(GENERATE, generate("how long?"))["meta_info"]
    assert differences.META_TIMES & set(meta) == (differences.META_TIMES if real(engine) else set())


def test_metrics(engine: Subject) -> None:
    assert ("_bucket{" in engine.get("/metrics").text) == real(engine)


def test_json_that_is_no_object(engine: Subject) -> None:
    with httpx.Client(base_url=engine.url) as client:
        response = client.post(CHAT, content=b"[]", headers={"content-type": "application/json"})
    if real(engine):
        assert (response.status_code, response.text) == (500, "Internal Server Error")
    else:
        assert (response.status_code, response.json()["type"]) == (400, "Bad Request")


def test_unknown_sampling_parameter(engine: Subject) -> None:
    response = engine.post(GENERATE, generate("hi", no_such_parameter=1))
    assert response.status_code == (400 if real(engine) else 200)


def test_echo(engine: Subject) -> None:
    text = engine.answer(COMPLETION, completion("say it again", echo=True))["choices"][0]["text"]
    assert text.startswith("say it again") == real(engine)


def test_leaving(engine: Subject) -> None:
    """SGLang looks every 4 s, counted from when the request came."""
    connection = engine.send(CHAT, endless(chat("leaving"), 12_000))
    engine.until_live(1)
    connection.close()
    engine.get("/v1/models")  # a turn of the engine's loop
    assert (engine.live() == (1, 0)) == real(engine)
    engine.until_live(0)


def test_abort_of_one_choice(engine: Subject) -> None:
    rid = unique()
    with engine.open(CHAT, endless(chat("two of them", rid=rid, n=2))) as lines:
        ids: list[str] = []
        while len(ids) < 2:
            name = next(lines).partition('"id":"')[2].partition('"')[0]
            ids += [name] if name not in ids else []
        engine.abort(ids[1])
        if real(engine):
            engine.until_live(1)
        else:
            assert engine.live() == (2, 0)
        engine.abort(ids[0])
        engine.until_live(0)
