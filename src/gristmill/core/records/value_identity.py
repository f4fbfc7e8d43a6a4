"""Describe any value as plain data, so that a later run can tell whether a stage still computes with the same one.

Plain values are described as themselves. Of a function, its code counts, with all that it computes with: defaults,
closure, attributes, and the globals that it reads. Of an object, its class counts, and the state that would be pickled
to a worker. What cannot be described this way, such as a lock, never equals what an earlier run had.

Code of the standard library, of Gristmill and of installed packages is known by its name; of installed packages the
code of a function or class that is used directly counts too, but not what it calls.

Descriptions that are not plain values are dicts with the key `KIND`.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import os
import re
import sys
import sysconfig
import threading
import types
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from gristmill.core.secret_values import Secret, hide_in_urls, holds_secret
from gristmill.core.stage import SETTINGS, ProcessingStage
from gristmill.core.task import digest

KIND = "@"
"""The key of what kind of value a description is of."""

INCOMPARABLE = "incomparable"
_MAX_ITEMS, _MAX_CHARS = 200, 2_000
_MAX_DEPTH = 60
_SECRET_ROUNDS = 50_000
_THIS_PROCESS, _described = os.urandom(8).hex(), itertools.count()
_NOT_IDENTITY = frozenset({*SETTINGS, "blocksize", "storage_options", "limit", "memory_gb", "not_identity", "_specs"})
_MAPPINGS = (dict, OrderedDict, Counter, types.MappingProxyType)
_VALUELESS = (
    type(threading.Lock()),
    type(threading.RLock()),
    *(types.MemberDescriptorType, types.GetSetDescriptorType),
)


def describe_value(value: Any) -> Any:
    """A value as plain data, the same in every process."""
    return _Describer().value(value)


def identity_hash(described: Any) -> str:
    return digest([orjson.dumps(described, option=orjson.OPT_SORT_KEYS).decode()], 16)


class _Describer:
    """Describes one value and what it refers to. Functions, classes and objects are described where they are first met,
    and named after that: they may refer to each other."""

    def __init__(self) -> None:
        self._met: dict[int, Any] = {}  # by id; holds the values, so that no id is used twice
        self._depth = 0
        self._secret = False
        """Whether the value is part of a secret, such as one of the texts of `auth=(user, password)`."""

    def value(self, value: Any) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, Secret) or (self._secret and isinstance(value, str | bytes | int | float)):
            return _secret(value)
        if type(value) in (int, float, str, bytes, bytearray):
            return _scalar(value)
        if self._depth > _MAX_DEPTH:
            return _incomparable(value)
        self._depth += 1
        try:
            return self._described(value)
        finally:
            self._depth -= 1

    def _described(self, value: Any) -> Any:
        if type(value) in _MAPPINGS:
            return self._mapping(value)
        if type(value) in (list, tuple):
            return _collapsed([self.value(item) for item in value])
        if type(value) in (set, frozenset):
            return _collapsed(sorted((_Describer().value(item) for item in value), key=identity_hash))
        if isinstance(value, re.Pattern):
            return {KIND: "pattern", "pattern": str(value.pattern), "flags": value.flags}
        if isinstance(value, types.ModuleType):
            return {KIND: "module", "name": value.__name__}
        return self._once(value)

    def _mapping(self, value: Mapping[Any, Any]) -> Any:
        if not all(type(key) in (str, int) for key in value):
            pairs = [[self.value(key), self.value(item)] for key, item in value.items()]
            return {KIND: "mapping", "items": _collapsed(sorted(pairs, key=identity_hash))}
        keys = sorted(value, key=str)
        found = {str(key): self._named(str(key), value[key]) for key in keys}
        if len(found) > _MAX_ITEMS or len(found) < len(value) or KIND in found:
            pairs = [[self.value(key), found[str(key)]] for key in keys]
            return {KIND: "mapping", "items": len(value), "digest": identity_hash(pairs)}
        return found

    def _named(self, name: str, value: Any) -> Any:
        """The value of an attribute, argument or key, which is secret by its name, or part of one that is."""
        before = self._secret
        self._secret = before or holds_secret(name, value)
        try:
            return self.value(value)
        finally:
            self._secret = before

    def _once(self, value: Any) -> Any:
        if id(value) in self._met:
            return {KIND: "again", "name": _name_of(value)}
        self._met[id(value)] = value
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, functools.partial):
            parts = {"function": self.value(value.func), "arguments": self.value(value.args)}
            return {KIND: "partial", **parts, "keywords": self._mapping(value.keywords)}
        if isinstance(value, types.MethodType):
            return {KIND: "method", "name": value.__name__, "of": self.value(value.__self__)}
        return self._reduced(value)

    # -- code ------------------------------------------------------------------------------------------------

    def _function(self, function: types.FunctionType) -> dict[str, Any]:
        found: dict[str, Any] = {KIND: "function", "name": _name_of(function)}
        if not is_compared(function.__module__):
            return found
        found["code"] = _code(function.__code__, function.__doc__)
        if function.__defaults__:
            found["defaults"] = self.value(function.__defaults__)
        if function.__kwdefaults__:
            found["keyword_defaults"] = self._mapping(function.__kwdefaults__)
        if function.__closure__:
            cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
            found["closure"] = {name: self._cell(name, cell) for name, cell in cells}
        attributes = {name: value for name, value in vars(function).items() if name != "__wrapped__"}
        if attributes:
            found["attributes"] = self._mapping(attributes)
        if is_user_code(function.__module__):
            globals_read = dict(self._globals(function))
            found |= {"globals": globals_read} if globals_read else {}
        return found

    def _cell(self, name: str, cell: Any) -> Any:
        try:
            return self._named(name, cell.cell_contents)
        except ValueError:
            return {KIND: "empty"}

    def _globals(self, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        """The globals that a function reads, and of a user's own modules the attributes. Modules may also be in the
        closure, or imported by the function; a string may be the name of an attribute, for `getattr`."""
        names = _names_read(function.__code__)
        attributes = names | _texts(function.__code__)
        imported = {name: sys.modules[name] for name in names if name in sys.modules}
        values = {**imported, **function.__globals__, **_modules_in_closure(function)}
        for name in sorted(names & values.keys()):
            value = values[name]
            if isinstance(value, types.ModuleType) and is_user_code(value.__name__):
                for part in sorted(attributes & vars(value).keys()):
                    yield f"{name}.{part}", self._named(part, vars(value)[part])
            elif not isinstance(value, types.ModuleType):
                yield name, self._named(name, value)

    def _class(self, kind: type) -> dict[str, Any]:
        found: dict[str, Any] = {KIND: "type", "name": class_name(kind)}
        code = self._class_code(kind)
        return found | ({"code": code} if code else {})

    def _class_code(self, kind: type) -> dict[str, Any]:
        """Methods and attributes of a user's class and its bases; of installed classes the code of the methods."""
        found: dict[str, Any] = {}
        if not any(is_compared(owner.__module__) for owner in kind.__mro__):
            return found
        if is_user_code(type(kind).__module__):
            found["@metaclass"] = self.value(type(kind))
        for owner in reversed(kind.__mro__):
            if is_user_code(owner.__module__):
                left_out = _left_out(kind)
                members = [(name, value) for name, value in _members(owner) if name not in left_out]
                found |= {name: self._named(name, value) for name, value in members}
            elif is_compared(owner.__module__):
                functions = [value for value in vars(owner).values() if isinstance(value, types.FunctionType)]
                found[class_name(owner)] = digest([_code(function.__code__) for function in functions])
        return found

    # -- objects ---------------------------------------------------------------------------------------------

    def instance(self, value: Any, state: Mapping[str, Any]) -> dict[str, Any]:
        kind: type = type(value)
        left_out, framework = _left_out(kind), _framework_attributes(kind)
        names = [name for name in sorted(state) if name not in left_out]
        described = {name: self._named(name, state[name]) for name in names if not (name[0] == "_" and framework(name))}
        return {**self._class_of(value), **described}

    def _class_of(self, value: Any) -> dict[str, Any]:
        code = self._class_code(type(value))
        return {"class": class_name(type(value)), **({"@code": code} if code else {})}

    def _reduced(self, value: Any) -> Any:
        """An object, by what pickle would keep of it."""
        if isinstance(value, ProcessingStage):
            return self.instance(value, vars(value))
        if isinstance(value, _VALUELESS):
            return {KIND: "object", "name": _name_of(type(value))}
        try:
            parts = value.__reduce_ex__(4)
        except Exception:  # noqa: BLE001  any class may refuse, in its own way
            return _incomparable(value)
        if isinstance(parts, str):
            inner = getattr(value, "__wrapped__", None)  # of a decorated function, such as lru_cache makes
            return {KIND: "object", "name": _name_of(value), **({"of": self.value(inner)} if inner else {})}
        maker, arguments, state, items, pairs = itertools.islice(itertools.chain(parts, itertools.repeat(None)), 5)
        if _is_plain_object(maker, arguments, type(value)) and items is None and pairs is None:
            return self.instance(value, _plain_state(state))
        described = {"maker": _name_of(maker), "arguments": self.value(list(arguments))}
        contents = {"state": state, "items": items and list(items), "pairs": pairs and [list(pair) for pair in pairs]}
        described |= {name: self.value(part) for name, part in contents.items() if part is not None}
        return {KIND: "object", **self._class_of(value), **described}


def _left_out(kind: type) -> frozenset[str]:
    """Attributes that change how an object works and not what it computes."""
    if issubclass(kind, ProcessingStage):
        return _NOT_IDENTITY.union(kind.not_identity)
    return frozenset() if is_compared(kind.__module__) else _NOT_IDENTITY


def _members(owner: type) -> Iterator[tuple[str, Any]]:
    """The methods and attributes that a class defines."""
    for name, value in vars(owner).items():
        if isinstance(value, staticmethod | classmethod):
            yield name, value.__func__
        elif isinstance(value, property):
            yield from ((f"{name}.{part}", getattr(value, part)) for part in ("fget", "fset"))
        elif isinstance(value, functools.cached_property):
            yield name, value.func
        elif isinstance(value, types.FunctionType) or not _is_internal(name, value):
            yield name, value


_MADE_BY_PYTHON = re.compile(
    "_abc_impl|__(module|qualname|doc|dict|weakref|slots|annotations|annotate|annotate_func|annotations_cache|firstlineno|"
    "static_attributes|orig_bases|parameters|abstractmethods|match_args|dataclass_fields|dataclass_params|hash|"
    "classcell|slotnames|type_params|protocol_attrs|non_callable_proto_members)__"
)
"""Members that Python itself puts into a class, or that say nothing about what it computes."""


def _is_internal(name: str, value: Any) -> bool:
    """Whether Python itself put a member into a class."""
    return isinstance(value, _VALUELESS) or _MADE_BY_PYTHON.fullmatch(name) is not None


def _secret(value: Any) -> dict[str, Any] | None:
    """A secret, by a slow hash: it must not be found by trying."""
    raw = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
    return {KIND: "secret", "digest": _slow_digest(raw)} if raw else None


@functools.lru_cache
def _slow_digest(raw: bytes) -> str:
    """Computed once for each secret: it takes 10 ms, and one value is often the argument of many stages."""
    return hashlib.pbkdf2_hmac("sha256", raw, b"gristmill", _SECRET_ROUNDS).hex()


def _scalar(value: Any) -> Any:
    if isinstance(value, int):
        return value if abs(value) < 2**53 else {KIND: "int", "value": str(value)}
    if isinstance(value, float):
        return value if math.isfinite(value) else {KIND: "float", "value": repr(value)}
    if isinstance(value, str):
        shown = hide_in_urls(value)
        if len(shown) <= _MAX_CHARS and shown == shown.encode("utf-8", "replace").decode():
            return shown
        return {KIND: "text", "chars": len(shown), "digest": digest([shown])}
    return {KIND: "bytes", "bytes": len(value), "digest": hashlib.blake2b(value, digest_size=8).hexdigest()}


def _collapsed(items: list[Any]) -> Any:
    if len(items) <= _MAX_ITEMS:
        return items
    return {KIND: "list", "items": len(items), "digest": identity_hash(items)}


def _incomparable(value: Any) -> dict[str, Any]:
    return {KIND: INCOMPARABLE, "type": class_name(type(value)), "process": f"{_THIS_PROCESS}-{next(_described)}"}


def _is_plain_object(maker: Any, arguments: Any, kind: type) -> bool:
    """Whether an object is nothing but its class and its attributes."""
    return _name_of(maker) == "copyreg.__newobj__" and len(arguments) == 1 and arguments[0] is kind


def _plain_state(state: Any) -> dict[str, Any]:
    """The attributes of an object, also those in slots."""
    if isinstance(state, tuple) and len(state) == 2 and all(isinstance(part, dict | None) for part in state):
        return {**(state[0] or {}), **(state[1] or {})}
    return state if isinstance(state, dict) else {} if state is None else {"state": state}


def _name_of(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return f"{getattr(value, '__module__', None) or type(value).__module__}.{name}"


def class_name(kind: type) -> str:
    """The name of a class in a plan: `gristmill.text.WordCountFilter` if its package or `gristmill` exports it, so that
    a run can still be resumed after the class has moved to another module; else its module and name."""
    root, _, rest = kind.__module__.partition(".")
    for package in (f"{root}.{rest.partition('.')[0]}", root) if root == "gristmill" else ():
        module = sys.modules.get(package)
        exported = getattr(module, "__all__", ())  # of a module, which may have none
        if kind.__qualname__ in exported and getattr(module, kind.__qualname__) is kind:
            return f"{package}.{kind.__qualname__}"
    return f"{kind.__module__}.{kind.__qualname__}"


@functools.cache
def is_compared(module: str | None) -> bool:
    """Whether code of this module may change between runs of the same version of Gristmill and Python."""
    root = (module or "").partition(".")[0]
    return root == "__main__" or (root not in ("", "gristmill") and root not in sys.stdlib_module_names)


@functools.cache
def is_user_code(module: str | None) -> bool:
    """Whether a module is a user's own, rather than one of an installed package."""
    if not is_compared(module):
        return False
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    installed = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
    return file is None or not any(Path(file).is_relative_to(folder) for folder in installed)


@functools.cache
def _framework_attributes(kind: type) -> Callable[[str], bool]:
    """Tells private attributes that Gristmill's classes keep in an object: they follow from the public ones."""
    owners = [owner for owner in kind.__mro__ if owner.__module__.partition(".")[0] == "gristmill"]
    if owners and not any(is_compared(owner.__module__) for owner in kind.__mro__):
        return lambda name: True
    names = itertools.chain.from_iterable(vars(owner) for owner in owners)
    functions = [item for owner in owners for item in vars(owner).values() if isinstance(item, types.FunctionType)]
    mentioned = itertools.chain.from_iterable(_names_read(function.__code__) for function in functions)
    return frozenset(itertools.chain(names, mentioned)).__contains__


def _names_read(code: types.CodeType) -> set[str]:
    """The names of globals and attributes in a code object and those inside it."""
    inner = [item for item in code.co_consts if isinstance(item, types.CodeType)]
    return set(code.co_names).union(code.co_freevars, *map(_names_read, inner))


def _texts(code: types.CodeType) -> set[str]:
    inner = [item for item in code.co_consts if isinstance(item, types.CodeType)]
    return {item for item in code.co_consts if isinstance(item, str)}.union(*map(_texts, inner))


def _modules_in_closure(function: types.FunctionType) -> dict[str, types.ModuleType]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    filled = ((name, cell) for name, cell in cells if cell != types.CellType())
    return {name: cell.cell_contents for name, cell in filled if isinstance(cell.cell_contents, types.ModuleType)}


def _code(code: types.CodeType, doc: str | None = None) -> str:
    constants = [None if doc is not None and item == doc else item for item in code.co_consts]
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    parts = [code.co_code.hex(), repr(code.co_names), repr(arguments), repr(code.co_freevars)]
    return digest([*parts, *map(_constant, constants)])


def _constant(value: Any) -> str:
    """A constant of a code object as text. Sets have no order, and their `repr` differs from process to process."""
    if isinstance(value, types.CodeType):
        return _code(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_constant, value)))}}}"
    return f"{type(value).__name__} {value!r}"
