"""Arguments of stages that take one tool or a list of them: one value for all, or one for each."""

from __future__ import annotations

from typing import Any

from gristmill.core.errors import shorten


def modifier_columns(count: int, inputs: Any, outputs: Any) -> tuple[list[list[str]], list[str]]:
    """For each modifier the columns that it reads, and the one that it writes."""
    given = as_list(inputs)
    if count == 1 and all(isinstance(field, str) for field in given):
        given = [given]
    columns = [as_list(fields) for fields in one_per_tool("input_fields", given, count)]
    if outputs is None:
        if any(len(fields) != 1 for fields in columns):
            raise ValueError(f"Modify: say in output_fields where the result of {inputs!r} goes")
        return columns, [fields[0] for fields in columns]
    targets = one_per_tool("output_fields", outputs, count)
    if len(as_list(outputs)) == 1 and len(given) == 1 and count > 1:
        columns[1:] = [[targets[0]]] * (count - 1)  # each goes on with what the one before it made
    return columns, targets


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def one_per_tool(argument: str, value: Any, count: int) -> list[Any]:
    """One value for each of `count` tools, from one for all or a list of one for each."""
    values = as_list(value)
    for one in values:
        if argument == "invert" and not isinstance(one, bool):
            raise TypeError(f"invert is {one!r}, must be True or False")
        if argument in ("text_field", "filter_field", "output_fields") and not (isinstance(one, str) and one):
            raise TypeError(f"{argument} is {one!r}, must be the name of a column")
    if len(values) == 1:
        return values * count
    if len(values) != count:
        raise ValueError(f"{argument} has {len(values)} values for {count}: give one, or one for each")
    return values


def check_distinct_columns(argument: str, names: list[Any]) -> list[Any]:
    given = [name for name in names if name is not None]
    if len(set(given)) != len(given):
        raise ValueError(f"{argument}: {shorten(given)} would be written more than once: give each its own column")
    return names


def number_repeated_labels(labels: list[str]) -> list[str]:
    """The labels, with a number where one comes again."""
    counts = [labels[: index + 1].count(label) for index, label in enumerate(labels)]
    return [label if count == 1 else f"{label} {count}" for label, count in zip(labels, counts, strict=True)]
