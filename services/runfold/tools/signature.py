"""A function's signature as the JSON schema of a tool's input, and as the check of that input.

pydantic does the work: it is given a stand-in with the function's parameters that returns its arguments instead of running
the body. So the body never runs inside validation, and a parameter may have any name.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from runfold.core.errors import ConfigError
from runfold.tools.context import ToolContext

Json = dict[str, Any]
_NAMELESS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)


@dataclass(frozen=True, slots=True)
class Signature:
    """What a model may pass to a function, and where the function wants its `ToolContext`."""

    schema: Json  # JSON schema of an object, closed to unknown keys
    adapter: TypeAdapter[Json]  # JSON text → keyword arguments
    closed: bool  # nested models refuse unknown keys too; False when one of them declares extra="allow"
    context: str | None  # name of the parameter annotated with ToolContext


def signature_of(function: Callable[..., Any], about: dict[str, str]) -> Signature:
    """Read a signature; ``about`` describes parameters by name. Raises `ConfigError` naming the parameter that cannot be used."""
    parameters = [_typed(function, parameter) for parameter in inspect.signature(function).parameters.values()]
    contexts = [parameter.name for parameter in parameters if _wants_context(parameter.annotation)]
    if len(contexts) > 1:
        raise _unusable(function, contexts[1], "a tool has one ToolContext at most")
    visible = [parameter for parameter in parameters if parameter.name not in contexts]
    adapter, schema = _adapt(function, visible)
    closed = not any(_declared_open(part) for part in _objects(schema))
    _polish(schema, about, closed)
    return Signature(schema, adapter, closed, contexts[0] if contexts else None)


def _typed(function: Callable[..., Any], parameter: inspect.Parameter) -> inspect.Parameter:
    """The parameter with its annotation resolved, as keyword-only."""
    if parameter.kind in _NAMELESS:
        raise _unusable(function, parameter.name, "*args, **kwargs and positional-only parameters cannot be given by name")
    if parameter.annotation is inspect.Parameter.empty:
        raise _unusable(function, parameter.name, "it has no type annotation; the model needs one (typing.Any allows anything)")
    try:
        hint = _resolve(function, parameter)
    except Exception as error:
        raise _unusable(function, parameter.name, f"{error}; use a type that is visible at module level") from error
    return parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY)


def _resolve(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    alone = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    return get_type_hints(alone, globalns=scope, include_extras=True)[parameter.name]


def _wants_context(hint: Any) -> bool:
    wrapped = get_args(hint) if get_origin(hint) in (Annotated, Union, UnionType) else ()
    return hint is ToolContext or ToolContext in wrapped


def _adapt(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> tuple[TypeAdapter[Json], Json]:
    stand_in = _stand_in(parameters)
    try:
        adapter: TypeAdapter[Json] = TypeAdapter(stand_in)
        return adapter, adapter.json_schema(schema_generator=_InputSchema)
    except Exception as error:
        raise _culprit(function, parameters, error) from error


def _stand_in(parameters: list[inspect.Parameter]) -> Any:
    def arguments(**given: Any) -> Json:
        return given

    function: Any = arguments
    function.__signature__ = inspect.Signature(parameters)
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return function


def _culprit(function: Callable[..., Any], parameters: list[inspect.Parameter], error: Exception) -> ConfigError:
    for parameter in parameters:
        try:
            TypeAdapter(parameter.annotation).json_schema(schema_generator=_InputSchema)
        except Exception as alone:
            return _unusable(function, parameter.name, f"{parameter.annotation!r} has no JSON schema: {alone}")
    return ConfigError(f"tool {_name(function)}: its parameters have no JSON schema: {error}")


class _InputSchema(GenerateJsonSchema):
    """Without titles derived from names (the model pays for every token), silent about defaults JSON cannot hold."""

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        pass

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _polish(schema: Json, about: dict[str, str], closed: bool) -> None:
    schema.setdefault("properties", {})
    schema["additionalProperties"] = False
    for name, text in about.items():
        if name in schema["properties"]:
            schema["properties"][name].setdefault("description", text)
    for part in _objects(schema) if closed else ():
        part.setdefault("additionalProperties", False)


def _objects(schema: Any) -> Iterator[Json]:
    """Every schema of an object with named properties, nested ones too."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
            yield schema
        for part in schema.values():
            yield from _objects(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _objects(part)


def _declared_open(part: Json) -> bool:
    return part.get("additionalProperties", False) is not False


def _unusable(function: Callable[..., Any], parameter: str, why: str) -> ConfigError:
    return ConfigError(f"tool {_name(function)}, parameter {parameter!r}: {why}")


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", function))
