"""Answers of a schema: what passes, and what is said of what does not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from gristmill.models.llm.structured_output import NotOfSchemaError, read_json, schema_of

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        "friend": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"name": "A", "age": 3, "tags": ["a"], "friend": {"name": "B"}}', None),
        ('```json\n{"name": "A"}\n```', None),
        ("Sure! Here it is", "it is not JSON"),
        ('{"age": 3}', "the answer has no 'name'"),
        ('{"name": ""}', "the answer.name has 0 characters, must have at least 1"),
        ('{"name": "A", "age": 200}', "the answer.age is 200, must be at most 150"),
        ('{"name": "A", "age": true}', "the answer.age is True, must be of type integer"),
        ('{"name": "A", "tags": ["c"]}', r"the answer.tags\[0\] is 'c', must be one of \['a', 'b'\]"),
        ('{"name": "A", "other": 1}', "the answer has 'other', which is not wanted"),
        ('{"name": "A", "friend": 3}', "fits none of the forms"),
        ("[" * 100 + "]" * 100, "must be of type object"),
    ],
)
def test_an_answer_of_a_schema(text: str, problem: str | None) -> None:
    if problem is None:
        assert read_json(text, PERSON)["name"] == "A"
    else:
        with pytest.raises(NotOfSchemaError, match=problem):
            read_json(text, PERSON)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 200) | st.floats(-5, 5) | st.sampled_from(["", "a", "b", "name"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(PERSON["properties"])), inner),
    max_leaves=6,
)


@given(json_values)
def test_the_checks_are_those_of_jsonschema(value: Any) -> None:
    import json

    try:
        read_json(json.dumps(value), PERSON)
        passes = True
    except NotOfSchemaError:
        passes = False
    assert passes == Draft202012Validator(PERSON).is_valid(value)


def test_a_pydantic_model_is_a_schema() -> None:
    class Inner(BaseModel):
        score: int

    class Judgement(BaseModel):
        inner: list[Inner]

    schema = schema_of(Judgement)
    assert schema is not None
    assert read_json('{"inner": [{"score": 3}]}', schema) == {"inner": [{"score": 3}]}
    with pytest.raises(NotOfSchemaError, match=r"inner\[0\] has no 'score'"):
        read_json('{"inner": [{}]}', schema)
    with pytest.raises(TypeError, match="must be a JSON schema"):
        schema_of(["name"])
