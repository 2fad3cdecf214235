"""`plan.toml`: a plan as a file that can be edited and checked again.

The model is a name in the table of `models`, or the path of a checkpoint's folder, which the caller reads. An unknown
key is an error that states the nearest known key, since a misspelt setting would have no effect.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any, Final

from warmroute_backend.plan.deployment import HiCache, Plan, PlannedEngine, Price, Site, Speculation, Traffic
from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.hardware import GPUS, gpus_with, parse_cluster
from warmroute_backend.plan.memory import EngineShape
from warmroute_backend.plan.model import Model
from warmroute_backend.plan.tables import known, record, table
from warmroute_backend.plan.words import OBJECTIVES
from warmroute_backend.ports import Ports

_RATE: Final = re.compile(r"\d{1,9}(\.\d{1,6})?")
VERSION: Final = 1
MAX_ENGINES: Final = 512

_NESTED: Final[Mapping[str, type]] = {"ports": Ports, "hicache": HiCache, "speculation": Speculation}
_RENAMED: Final = {"kv_type": "kv_dtype", "fraction": "memory_fraction"}
"""Field -> its key in the file, if the key is not the field's name."""

_SHAPE_KEYS: Final = {_RENAMED.get(each.name, each.name): each.name for each in fields(EngineShape)}
_ENGINE_KEYS: Final = {
    _RENAMED.get(each.name, each.name): each.name
    for each in fields(PlannedEngine)
    if each.name not in {"shape", *_NESTED}
}
"""Key of a table [[engine]] -> the field of the engine or, for `_SHAPE_KEYS`, of its shape."""


def written(plan: Plan, model: str) -> str:
    """The text of a plan's file. `model`: the model's name on the command line."""
    head = {"version": VERSION, "model": model, "model_name": plan.model_name}
    head |= {"gpus": str(plan.cluster), "objective": plan.objective}
    site = asdict(plan.site)
    environment = dict(site.pop("environment"))
    tables = [f"# Made by `warmroute plan`; after an edit: warmroute plan --check plan.toml\n{table('[plan]', head)}"]
    if plan.cluster.gpu != GPUS.get(plan.cluster.gpu.name):
        tables.append(table("[[gpu]]", asdict(plan.cluster.gpu)))
    if plan.traffic is not None:
        tables.append(table("[traffic]", asdict(plan.traffic)))
    if plan.price is not None:
        tables.append(table("[price]", asdict(plan.price)))
    tables += [table("[site]", site), table("[site.environment]", environment)]
    for engine in plan.engines:
        own = {key: getattr(engine, name) for key, name in _ENGINE_KEYS.items()}
        own |= {key: getattr(engine.shape, name) for key, name in _SHAPE_KEYS.items()}
        tables.append(table("[[engine]]", own))
        nested = {key: getattr(engine, key) for key in _NESTED}
        tables += [table(f"[engine.{key}]", asdict(each)) for key, each in nested.items() if each is not None]
    return "\n".join(tables)


# --- reading -----------------------------------------------------------------------------------------------------


def read(document: Mapping[str, Any], find_model: Callable[[str], Model], where: str) -> tuple[Plan, str]:
    """The plan in a parsed file, and the model's name. Raises PlanError with the key that is wrong."""
    known(document, ("plan", "gpu", "traffic", "price", "site", "engine"), where)
    head = _table(document, "plan", where)
    known(head, ("version", "model", "model_name", "gpus", "objective"), f"{where}: plan")
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
        engines=tuple(_engine(each, f"{where}: engine[{number}]") for number, each in enumerate(tables)),
        traffic=None if traffic is None else record(Traffic, traffic, f"{where}: traffic"),
        site=_site(document.get("site", {}), f"{where}: site"),
        price=_price(document.get("price"), f"{where}: price"),
    )
    return plan, name


def _price(given: object, where: str) -> Price | None:
    if given is None:
        return None
    found = record(Price, given, where)
    for name in ("input", "cached", "output"):
        if not _RATE.fullmatch(getattr(found, name)):
            raise PlanError(f"{where}.{name} is {getattr(found, name)!r}, which is not a decimal number of USD.")
    return found


def _site(given: object, where: str) -> Site:
    if not isinstance(given, dict):
        raise PlanError(f"{where} is not a table.")
    rest = dict(given)
    environment = rest.pop("environment", {})
    if not isinstance(environment, dict) or not all(isinstance(each, str) for each in environment.values()):
        raise PlanError(f"{where}.environment is not a table of texts.")
    return record(Site, {**rest, "environment": list(environment.items())}, where)


def _engine(given: object, where: str) -> PlannedEngine:
    if not isinstance(given, dict):
        raise PlanError(f"{where} is not a table.")
    known(given, (*_ENGINE_KEYS, *_SHAPE_KEYS, *_NESTED), where)
    own = {name: given[key] for key, name in _ENGINE_KEYS.items() if key in given}
    shape = {name: given[key] for key, name in _SHAPE_KEYS.items() if key in given}
    nested: dict[str, object] = {
        key: record(kind, given[key], f"{where}.{key}") for key, kind in _NESTED.items() if key in given
    }
    made = {**own, **nested, "shape": record(EngineShape, shape, where, keys=_RENAMED)}
    return record(PlannedEngine, made, where, keys=_RENAMED)


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
        raise PlanError(f"{where}.{key} is {found!r}, which is not one of {', '.join(words)}.")
    return found
