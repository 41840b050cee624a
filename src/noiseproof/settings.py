"""Settings that are checked by their annotations: of methods, networks and trainings."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AllowInfNan

from noiseproof.errors import SettingError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Finite = Annotated[float, AllowInfNan(False)]
Positive = Annotated[Finite, Gt(0)]
NonNegative = Annotated[Finite, Ge(0)]
Count = Annotated[int, Gt(0)]
Share = Annotated[float, Ge(0), Le(1)]
BelowOne = Annotated[float, Ge(0), Lt(1)]
Rate = Annotated[float, Gt(0), Le(1)]
Within = Annotated[float, Gt(0), Lt(1)]


@functools.cache
def adapters(owner: type | Callable[..., Any]) -> dict[str, TypeAdapter[Any]]:
    """What reads and checks each field of a dataclass, or each argument of a function, by its annotation."""
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter

    def adapter(hint: Any) -> TypeAdapter[Any]:
        try:
            return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
        except PydanticUserError:  # the type, say a dataclass, brings a configuration of its own
            return TypeAdapter(hint)

    hints = typing.get_type_hints(owner, include_extras=True)
    return {name: adapter(hint) for name, hint in hints.items() if typing.get_origin(hint) is not ClassVar}


def read(owner: str, field: str, value: Any, adapter: TypeAdapter[Any]) -> Any:
    """The value as its annotation has it.

    Args:
        owner: Whose setting it is, for the error message.
        field: The setting's name.
        value: What was given; text is read as a number where a number is wanted.
        adapter: The field's, of `adapters`.

    Returns:
        The value, of the annotated type.

    Raises:
        SettingError: The value is not what the annotation says.
    """
    from pydantic import ValidationError

    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Input should be ")
        raise SettingError(f"{owner}'s setting {field} must be {reason}, not {value!r}.") from None


def check_fields(owner: str, instance: Any) -> None:
    """Check every field of a dataclass against its annotation; to be called in its `__post_init__`.

    Args:
        owner: Whose settings they are, for the error message.
        instance: The dataclass, frozen or not; fields are set to the values that were read.

    Raises:
        SettingError: A value is not what its annotation says.
    """
    found = adapters(instance.__class__)
    for field in dataclasses.fields(instance):
        value = read(owner, field.name, getattr(instance, field.name), found[field.name])
        object.__setattr__(instance, field.name, value)
