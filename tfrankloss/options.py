"""Arguments of losses and metrics: checks, names, configurations, and making one from its name."""

import difflib
import importlib
import inspect
import numbers
from collections.abc import Mapping
from typing import Any, TypeVar

import keras
import numpy as np

register = keras.saving.register_keras_serializable(package="tfrankloss")

Option = TypeVar("Option")


class ShowsArguments:
    """A class whose signature, in `help` and completion, has the arguments of its parents, too."""

    __signature__: Any

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls.__signature__ = ClassSignature(inspect.Signature(_parameters(cls)))


class ClassSignature:
    """The signature of a class that its instances do not have: they are callable, too."""

    def __init__(self, signature: inspect.Signature) -> None:
        self.signature = signature

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")
        return self.signature


def constructor_arguments(cls: type) -> list[str]:
    """Names of the arguments that `cls` and the classes above it take, most general last."""
    return [parameter.name for parameter in _parameters(cls)]


def _parameters(cls: type) -> list[inspect.Parameter]:
    found: dict[str, inspect.Parameter] = {}
    constructors = [parent for parent in cls.__mro__ if "__init__" in vars(parent)]
    first = constructors[0]
    for parent in constructors:
        own = list(inspect.signature(vars(parent)["__init__"]).parameters.values())[1:]
        for parameter in own:
            if parameter.kind is not parameter.VAR_KEYWORD:
                # A class passes what it does not know itself on by name.
                kind = parameter.kind if parent is first else parameter.KEYWORD_ONLY
                found.setdefault(parameter.name, parameter.replace(kind=kind))
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in own):
            break
    positional = [p for p in found.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    return positional + [p for p in found.values() if p.kind is p.KEYWORD_ONLY]


def configuration(instance: Any, **known: Any) -> dict[str, Any]:
    """The arguments of the constructor, from the attributes of the same name or from `known`."""
    config = {}
    for name in constructor_arguments(type(instance)):
        value = known[name] if name in known else getattr(instance, name)
        value = value.item() if isinstance(value, np.generic) else value
        plain = value is None or isinstance(value, (bool, int, float, str))
        config[name] = value if plain else keras.saving.serialize_keras_object(value)
    return config


def arguments_from(config: dict[str, Any]) -> dict[str, Any]:
    """The arguments that `configuration` was made of."""
    return {
        name: keras.saving.deserialize_keras_object(value)
        if isinstance(value, (dict, list))
        else value
        for name, value in config.items()
    }


def make(
    kind: str,
    base: type[Option],
    known: Mapping[str, type[Option]],
    identifier: Any,
    options: dict[str, Any],
    example: str,
    hints: Mapping[str, str] | None = None,
) -> Option:
    """Makes a loss or a metric from its name, where `@k` sets `topn`, or from its configuration.

    Args:
        kind: `"loss"` or `"metric"`, for messages.
        base: the class of all of them; an instance of it is returned as it is.
        known: classes by name.
        identifier: one of the names in `known`, with or without underscores and its kind; or a
            configuration, or an instance.
        options: further arguments of the class.
        example: a name, for messages.
        hints: what to add, by name, where the arguments do not fit.
    """
    if isinstance(identifier, Mapping):
        identifier = keras.saving.deserialize_keras_object(identifier)
    if isinstance(identifier, base) and not options:
        return identifier
    if not isinstance(identifier, str):
        raise ValueError(
            f"A {kind} is asked for by a name such as {example!r} (options go with a name only). "
            f"Received: {identifier!r} with options {options}"
        )
    _, at, cutoff = identifier.partition("@")
    found = find(kind, known, identifier)
    if at:
        if "topn" in options:
            raise ValueError(
                f"The cutoff is given twice. Received: {identifier!r} and topn={options['topn']!r}"
            )
        options = {**options, "topn": _cutoff(identifier, cutoff)}
    cls = known[found]
    try:
        return cls(**options)
    except TypeError as error:
        hint = (hints or {}).get(found)
        raise ValueError(
            (f"{hint} " if hint else "")
            + f"The {kind} {found!r} cannot be made from {identifier!r} with the options "
            f"{options}: {error}. {cls.__name__} takes: {', '.join(constructor_arguments(cls))}."
        ) from error


def find(kind: str, known: Mapping[str, Any], identifier: str) -> str:
    """The name in `known` that is meant, whatever its spelling and its cutoff."""
    by_key = {_key(name, kind): name for name in known}
    key = _key(identifier.partition("@")[0], kind)
    if key not in by_key:
        close = difflib.get_close_matches(key, by_key, n=1, cutoff=0.5)
        cutoff = "".join(identifier.partition("@")[1:])
        hint = f" Did you mean {by_key[close[0]] + cutoff!r}?" if close else ""
        plural = f"{kind}es" if kind.endswith("s") else f"{kind}s"
        raise ValueError(
            f"Unknown {kind}: {identifier!r}.{hint} Known {plural}: {', '.join(known)}"
        )
    return by_key[key]


def _cutoff(identifier: str, cutoff: str) -> int:
    if not cutoff.isdigit() or int(cutoff) < 1:
        raise ValueError(
            f"The cutoff after '@' must be an integer of at least 1. Received: {identifier!r}"
        )
    return int(cutoff)


def _key(name: str, kind: str) -> str:
    """What two spellings of a name have in common."""
    key = name.lower().replace("++", "plusplus")
    for character in "_- ":
        key = key.replace(character, "")
    return key.removesuffix(kind)


def snake_case(name: str) -> str:
    """`PairwiseHingeLoss` becomes `pairwise_hinge_loss`, `NDCGLoss2` becomes `ndcg_loss2`."""
    result = ""
    for previous, character, following in zip(" " + name, name, name[1:] + " ", strict=False):
        starts = character.isupper() and (previous.islower() or following.islower())
        result += ("_" if starts and result else "") + character.lower()
    return result


def check_choice(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raises unless `value` is one of the allowed names."""
    if value not in allowed:
        raise ValueError(
            f"{name} must be one of {', '.join(map(str, allowed))}. Received: {name}={value!r}"
        )


def check_number(name: str, value: Any) -> None:
    """Raises unless `value` is a number that fits float32, or NaN."""
    if not _is_number(value) or abs(value) > 3.4e38:
        raise ValueError(f"{name} must be a number that fits float32. Received: {name}={value!r}")


def check_positive(name: str, value: Any) -> None:
    """Raises unless `value` is a finite number above 0."""
    if not _is_number(value) or not 0 < value < float("inf"):
        raise ValueError(f"{name} must be a number above 0. Received: {name}={value!r}")


def check_not_negative(name: str, value: Any) -> None:
    """Raises unless `value` is a finite number of at least 0."""
    if not _is_number(value) or not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be a number of at least 0. Received: {name}={value!r}")


def check_fraction(name: str, value: Any, closed: bool = False) -> None:
    """Raises unless `value` is a number between 0 and 1 (both included where `closed`)."""
    if not _is_number(value) or not (0 <= value <= 1 if closed else 0 < value < 1):
        ends = "from 0 to 1" if closed else "between 0 and 1"
        raise ValueError(f"{name} must be a number {ends}. Received: {name}={value!r}")


def check_integer(name: str, value: Any, minimum: int) -> None:
    """Raises unless `value` is an integer of at least `minimum`."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < minimum:
        raise ValueError(
            f"{name} must be an integer of at least {minimum}. Received: {name}={value!r}"
        )


def check_topn(topn: Any) -> None:
    """Raises unless `topn` is None or a positive integer."""
    if topn is not None:
        check_integer("topn", topn, minimum=1)


def check_function(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raises unless `value` is a callable or one of the allowed names."""
    if not callable(value) and value not in allowed:
        raise ValueError(
            f"{name} must be one of {', '.join(allowed)} or a function. Received: {name}={value!r}"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def needs(module: str, extra: str) -> Any:
    """Imports a package that is not always installed, or says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f'{module.partition(".")[0]} is needed here: pip install "tfrankloss[{extra}]"'
        ) from error
