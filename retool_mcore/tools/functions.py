"""Python functions as tools: their schemas from signature, type hints and docstring."""

import importlib
import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any

from docstring_parser import parse
from pydantic import Field, create_model
from pydantic.errors import PydanticUserError

from retool_mcore.data.function_schema import function_schema
from retool_mcore.errors import UserError
from retool_mcore.tools.base import Episode, Reply, Tool, result_of


class FunctionTable:
    """The functions `names` of `module`; without names all public ones that the module defines.

    Raises UserError for a module or function that is not there, or one whose arguments cannot be passed by name.
    """

    def __init__(self, module: str, names: Sequence[str] | None = None):
        try:
            imported = importlib.import_module(module)
        except ImportError as error:
            raise UserError(f"the function table's module {module} cannot be imported: {error}.") from error
        if names is None:
            own = inspect.getmembers(imported, inspect.isfunction)
            names = [name for name, function in own if function.__module__ == module and not name.startswith("_")]
        if not names:
            raise UserError(f"the function table's module {module} defines no public function.")
        self.tools = []
        for name in names:
            function = getattr(imported, name, None)
            if not callable(function):
                raise UserError(f"the function table's module {module} has no function {name!r}.")
            self.tools.append(FunctionTool(function))


class FunctionTool(Tool):
    """One function: called by keyword, in a thread unless it is a coroutine function.

    What it returns is shown as it is when it is text, as JSON otherwise. A thread that runs past the time limit cannot
    be stopped: programs that may hang belong into the sandbox.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.schema = describe(function)

    async def call(self, arguments: dict, episode: Episode) -> Reply:
        value = await result_of(self.function, **arguments)
        return Reply(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def describe(function: Callable[..., Any]) -> dict:
    """The function schema of `function`: types from its hints, words from its docstring (Google, NumPy or reST style).

    Raises UserError for parameters that cannot be passed by name or whose type has no JSON schema.
    """
    name = function.__name__
    text = parse(inspect.getdoc(function) or "")
    words = {param.arg_name: param.description for param in text.params}
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.kind not in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise UserError(f"the function {name} cannot be a tool: {parameter} cannot be passed by name.")
        hint = Any if parameter.annotation is parameter.empty else parameter.annotation
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hint, Field(default, description=words.get(parameter.name)))
    try:
        parameters = create_model(name, **fields).model_json_schema()
    except (PydanticUserError, TypeError, NameError) as error:
        raise UserError(f"the function {name} cannot be a tool: {str(error).splitlines()[0]}.") from error
    parameters.pop("title", None)
    for described in parameters.get("properties", {}).values():
        described.pop("title", None)
    parameters = {**parameters, "properties": parameters.get("properties", {}), "additionalProperties": False}
    return function_schema(name, text.description or "", parameters)
