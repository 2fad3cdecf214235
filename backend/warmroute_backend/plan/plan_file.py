"""`plan.toml`: a plan as a file that can be edited and checked again.

The model is a name of the table or the path of a checkpoint's folder, which the caller reads. Unknown keys are errors,
with the nearest known name, since a misspelt setting would be one that is not made.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from typing import Any, Final

from warmroute_backend.plan.deployment import (
    ROLES,
    Engine,
    HiCache,
    Plan,
    Ports,
    Price,
    Site,
    Speculation,
    Traffic,
)
from warmroute_backend.plan.errors import PlanError, unknown
from warmroute_backend.plan.hardware import GPUS, gpus_with, parse_cluster
from warmroute_backend.plan.memory import Shape
from warmroute_backend.plan.model import Model
from warmroute_backend.plan.words import OBJECTIVES, STORAGES

_RATE: Final = re.compile(r"\d{1,9}(\.\d{1,6})?")
VERSION: Final = 1
MAX_ENGINES: Final = 512

_SHAPE_KEYS: Final = {
    "role": "role",
    "tp": "tp",
    "attention_dp": "attention_dp",
    "chunk_tokens": "chunk_tokens",
    "running_requests": "running_requests",
    "graph_batch": "graph_batch",
    "kv_dtype": "kv_type",
    "page_tokens": "page_tokens",
    "draft_layers": "draft_layers",
    "draft_tokens": "draft_tokens",
    "draft_bytes": "draft_bytes",
    "draft_is_mtp": "draft_is_mtp",
    "window_ratio": "window_ratio",
}
_ENGINE_KEYS: Final = {
    "name": "name",
    "node": "node",
    "nodes": "nodes",
    "first_gpu": "first_gpu",
    "ep": "ep",
    "memory_fraction": "fraction",
    "context_tokens": "context_tokens",
    "storage": "storage",
    "lmcache": "lmcache",
}
_NESTED: Final[Mapping[str, type]] = {"ports": Ports, "hicache": HiCache, "speculation": Speculation}
_WORDS: Final = {"role": ROLES, "storage": STORAGES}


def written(plan: Plan, model: str) -> str:
    """The file of a plan; `model` is what names its model on the command line."""
    lines = [
        "# Made by `warmroute plan`; after an edit: warmroute plan --check plan.toml",
        "[plan]",
        f"version = {VERSION}",
    ]
    lines += [f"model = {_value(model)}", f"model_name = {_value(plan.model_name)}"]
    lines += [f"gpus = {_value(str(plan.cluster))}", f"objective = {_value(plan.objective)}"]
    if plan.cluster.gpu != GPUS.get(plan.cluster.gpu.name):
        lines += ["", "[[gpu]]", *_pairs(plan.cluster.gpu)]
    if plan.traffic is not None:
        lines += ["", "[traffic]", *_pairs(plan.traffic)]
    if plan.price is not None:
        lines += ["", "[price]", *_pairs(plan.price)]
    site = [line for line in _pairs(replace(plan.site, environment=())) if not line.startswith("environment")]
    lines += ["", "[site]", *site, "", "[site.environment]"]
    lines += [f"{json.dumps(name)} = {_value(value)}" for name, value in plan.site.environment]
    for engine in plan.engines:
        lines += ["", "[[engine]]", *_engine_lines(engine)]
    return "\n".join(lines) + "\n"


def _engine_lines(engine: Engine) -> list[str]:
    lines = [f"{key} = {_value(getattr(engine, name))}" for key, name in _ENGINE_KEYS.items()]
    lines += [f"{key} = {_value(getattr(engine.shape, name))}" for key, name in _SHAPE_KEYS.items()]
    for key in _NESTED:
        nested = getattr(engine, key)
        if nested is not None:
            lines += ["", f"[engine.{key}]", *_pairs(nested)]
    return lines


def _pairs(record: Any) -> list[str]:
    values = ((field.name, getattr(record, field.name)) for field in fields(record))
    return [f"{name} = {_value(value)}" for name, value in values if value is not None]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return f"[{', '.join(_value(each) for each in value)}]"
    return json.dumps(value, ensure_ascii=False)


# --- reading -----------------------------------------------------------------------------------------------------


def read(document: Mapping[str, Any], find_model: Callable[[str], Model], where: str) -> tuple[Plan, str]:
    """The plan of a parsed file, and the name of its model. Raises PlanError with the key that is wrong."""
    _known(document, ("plan", "gpu", "traffic", "price", "site", "engine"), where)
    head = _table(document, "plan", where)
    _known(head, ("version", "model", "model_name", "gpus", "objective"), f"{where}: plan")
    if head.get("version") != VERSION:
        raise PlanError(f"{where}: plan.version is {head.get('version')!r}, and {VERSION} is known.")
    name, gpus = (_text(head, key, f"{where}: plan") for key in ("model", "gpus"))
    objective = _one_of(head, "objective", OBJECTIVES, f"{where}: plan")
    model = find_model(name)
    traffic = document.get("traffic")
    tables = document.get("engine")
    if not isinstance(tables, list) or not 1 <= len(tables) <= MAX_ENGINES:
        raise PlanError(f"{where}: it has 1 to {MAX_ENGINES} tables [[engine]].")
    plan = Plan(
        model=model,
        model_name=str(head.get("model_name") or model.name),
        cluster=parse_cluster(gpus, gpus_with(document.get("gpu", []), where)),
        objective=objective,
        engines=tuple(_engine(table, f"{where}: engine[{number}]") for number, table in enumerate(tables)),
        traffic=None if traffic is None else _record(Traffic, traffic, f"{where}: traffic"),
        site=_site(document.get("site", {}), f"{where}: site"),
        price=_price(document.get("price"), f"{where}: price"),
    )
    return plan, name


def _price(table: object, where: str) -> Price | None:
    if table is None:
        return None
    found: Price = _record(Price, table, where)
    for name in ("input", "cached", "output"):
        if not _RATE.fullmatch(getattr(found, name)):
            raise PlanError(f"{where}.{name} is {getattr(found, name)!r}, which is no decimal number of USD.")
    return found


def _site(table: object, where: str) -> Site:
    if not isinstance(table, dict):
        raise PlanError(f"{where} is no table.")
    rest = dict(table)
    environment = rest.pop("environment", {})
    if not isinstance(environment, dict) or not all(isinstance(each, str) for each in environment.values()):
        raise PlanError(f"{where}.environment is no table of texts.")
    hosts = rest.get("hosts", [])
    if not isinstance(hosts, list) or not all(isinstance(each, str) for each in hosts):
        raise PlanError(f"{where}.hosts is no list of addresses.")
    rest["hosts"] = tuple(hosts)
    site: Site = _record(Site, rest, where)
    return replace(site, environment=tuple(environment.items()))


def _engine(table: object, where: str) -> Engine:
    if not isinstance(table, dict):
        raise PlanError(f"{where} is no table.")
    _known(table, (*_ENGINE_KEYS, *_SHAPE_KEYS, *_NESTED), where)
    for key, words in _WORDS.items():
        if key in table:
            _one_of(table, key, words, where)
    own = {name: table[key] for key, name in _ENGINE_KEYS.items() if key in table}
    shape = {name: table[key] for key, name in _SHAPE_KEYS.items() if key in table}
    nested = {key: _record(kind, table[key], f"{where}.{key}") for key, kind in _NESTED.items() if key in table}
    keys = {name: key for key, name in (*_ENGINE_KEYS.items(), *_SHAPE_KEYS.items())}
    found = _record(Shape, shape, where, keys)
    engine: Engine = _record(Engine, {**own, **nested, "shape": found}, where, keys)
    return engine


def _record(kind: Any, table: object, where: str, keys: Mapping[str, str] | None = None) -> Any:
    """A dataclass of a table's values, checked by the types of its fields. `keys`: a field's name in the file."""
    if not isinstance(table, dict):
        raise PlanError(f"{where} is no table.")
    named = {field.name: field for field in fields(kind)}
    _known(table, tuple(named), where)
    for name, value in table.items():
        _check_type(named[name].type, value, f"{where}.{(keys or {}).get(name, name)}")
    missing = [
        (keys or {}).get(name, name)
        for name, field in named.items()
        if name not in table and field.default is MISSING and field.default_factory is MISSING
        and "None" not in str(field.type)
    ]  # fmt: skip
    if missing:
        raise PlanError(f"{where} lacks {', '.join(missing)}.")
    optional = {name: None for name, field in named.items() if name not in table and field.default is MISSING}
    return kind(**{**{name: None for name in optional if "None" in str(named[name].type)}, **table})


def _check_type(kind: Any, value: object, where: str) -> None:
    """Numbers are numbers and texts are texts; records and tuples were made here."""
    expected: tuple[type, ...] = ()
    what = ""
    if kind is bool:
        expected, what = (bool,), "true or false"
    elif kind is int:
        expected, what = (int,), "a whole number"
    elif kind is float:
        expected, what = (int, float), "a number"
    elif kind is str or str(kind).startswith(("str", "typing.Literal")) or kind == str | None:
        expected, what = (str,), "a text"
    if expected and (not isinstance(value, expected) or (isinstance(value, bool) and kind is not bool)):
        raise PlanError(f"{where} is {value!r}, which is not {what}.")


def _known(table: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in names:
            raise unknown(f"key of {where}", key, names)


def _table(document: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    found = document.get(key)
    if not isinstance(found, dict):
        raise PlanError(f"{where}: it has no table [{key}].")
    return found


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    found = table.get(key)
    if not isinstance(found, str) or not found:
        raise PlanError(f"{where}.{key} is missing or no text.")
    return found


def _one_of(table: Mapping[str, Any], key: str, words: tuple[str, ...], where: str) -> Any:
    found = table.get(key)
    if found not in words:
        raise PlanError(f"{where}.{key} is {found!r}, which is none of {', '.join(words)}.")
    return found
