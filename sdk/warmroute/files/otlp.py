"""Reads spans from OTLP's JSON, which the OpenTelemetry Collector's file exporter and other programs write."""

from collections.abc import Iterator, Mapping
from typing import Any


def spans_of(export: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
    """Yield each span of an export, with the attributes of its resource; nothing if the object has no spans."""
    for of_resource in objects_in(export.get("resourceSpans")):
        resource = of_resource.get("resource")
        attributes = attributes_of(resource.get("attributes")) if isinstance(resource, Mapping) else {}
        for scope in objects_in(of_resource.get("scopeSpans")):
            for span in objects_in(scope.get("spans")):
                yield attributes, span


def attributes_of(value: object) -> dict[str, Any]:
    """Attributes as a mapping. `value`: a mapping, or OTLP's list of keys and typed values."""
    if isinstance(value, Mapping):
        return dict(value)
    return {str(pair["key"]): _value(pair.get("value")) for pair in objects_in(value) if "key" in pair}


def objects_in(value: object) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a list; nothing if `value` is not a list."""
    return (each for each in value if isinstance(each, Mapping)) if isinstance(value, list) else iter(())


def _value(value: object) -> Any:
    if not isinstance(value, Mapping):
        return value
    for name in ("stringValue", "doubleValue", "boolValue"):
        if name in value:
            return value[name]
    if "intValue" in value:
        return _whole(value["intValue"])
    if "arrayValue" in value:
        return [_value(item) for item in _values(value["arrayValue"])]
    return attributes_of(_values(value["kvlistValue"])) if "kvlistValue" in value else None


def _whole(value: object) -> object:
    """The number, if `value` is one of OTLP's whole numbers as text; any other value unchanged."""
    is_text = isinstance(value, str) and value.isascii() and value.lstrip("-").isdecimal() and len(value) <= 20
    return int(str(value)) if is_text else value


def _values(value: object) -> list[Any]:
    found = value.get("values") if isinstance(value, Mapping) else None
    return found if isinstance(found, list) else []
