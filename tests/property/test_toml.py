"""What is written as TOML is read back: plans, the proxy's configuration of a plan, templates of fleets."""

import tomllib
from dataclasses import fields, replace
from string import Template
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.search import searched
from tests.unit.plan.plans import KINDS, kind

from warmroute_backend.plan.deployment import Plan, Price, Site, Speculation, Traffic
from warmroute_backend.plan.files.proxy import proxy_config
from warmroute_backend.plan.hardware import GPUS
from warmroute_backend.plan.models import known_model
from warmroute_backend.plan.plan_file import read, written
from warmroute_backend.plan.tables import table, value
from warmroute_backend.ports import Port
from warmroute_cli.run.run import _escaped

texts = st.text(st.characters(codec="utf-8"), max_size=40)
numbers, counts = st.integers(0, 2**53), st.integers(1, 2**53)
floats = st.floats(0, 1e15)
rates = st.decimals(0, 999, places=3).map(str)
OF_TYPE = {
    str: texts,
    int: numbers,
    Port: st.integers(1, 65_535),
    tuple[str, ...]: st.lists(texts, max_size=3).map(tuple),
    tuple[tuple[str, str], ...]: st.dictionaries(texts, texts, max_size=3).map(lambda found: tuple(found.items())),
}
sites = st.builds(Site, **{field.name: OF_TYPE[field.type] for field in fields(Site)})  # type: ignore[index]
values = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, str]:
    name = draw(st.sampled_from(sorted(KINDS)))
    plan = kind(name)
    drafts = st.none() | st.builds(
        Speculation, texts, counts, counts, counts, floats, texts, numbers, path=st.none() | texts
    )
    first, *others = plan.engines
    return replace(
        plan,
        model_name=draw(texts) or plan.model_name,
        traffic=draw(st.none() | st.builds(Traffic, numbers, numbers, floats, floats)),
        price=draw(st.none() | st.builds(Price, rates, rates, rates, texts)),
        site=draw(sites),
        engines=(replace(first, name=draw(texts), fraction=draw(floats), speculation=draw(drafts)), *others),
        cluster=replace(plan.cluster, gpu=replace(plan.cluster.gpu, bf16_tflops=draw(floats))),
        choices=(),
    ), KINDS[name][0]


@searched(60)
@given(plans())
def test_a_plan_is_read_back(made: tuple[Plan, str]) -> None:
    plan, model = made
    text = written(plan, model)
    assert read(tomllib.loads(text), known_model, "plan.toml") == (replace(plan, model=known_model(model)), model)
    assert (plan.cluster.gpu == GPUS[plan.cluster.gpu.name]) == ("[[gpu]]" not in text)


@searched(60)
@given(plans(), st.booleans(), st.booleans())
def test_the_proxys_configuration_of_a_plan_is_read_back(made: tuple[Plan, str], in_pods: bool, in_unit: bool) -> None:
    plan, _ = made
    found = tomllib.loads(proxy_config(plan, in_pods=in_pods, in_unit=in_unit))
    assert [engine["id"] for engine in found["engine"]] == [engine.name for engine in plan.engines]
    (model,) = found["model"]
    assert model["name"] == plan.model_name
    assert model.get("input") == (plan.price.input if plan.price else None)


@given(st.dictionaries(texts, values, max_size=4))
def test_a_table_is_read_back(found: dict[str, Any]) -> None:
    assert tomllib.loads(table("[it]", found))["it"] == found


@given(values)
def test_a_value_of_a_template_is_read_back(found: Any) -> None:
    assert tomllib.loads(Template("key = $it  # what it is").substitute(it=value(found)))["key"] == found


@given(texts)
def test_a_text_inside_quotes_of_a_program_s_settings_is_read_back(text: str) -> None:
    assert tomllib.loads(f'key = "{_escaped(text)}"')["key"] == text
