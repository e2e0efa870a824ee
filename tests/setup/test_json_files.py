"""Settings in JSON: ours are in it, and everything else is as it was, to the byte where somebody laid it out."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.setup.blocks import CantEdit
from server.setup.json_files import with_entries

OURS = {"clients": {"draftline": {"command": ["draftline", "lsp"]}}}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4), st.sampled_from([None, 2, 4, "\t"]), st.booleans())
def test_all_other_settings_stay_and_a_second_time_changes_nothing(settings, indent, ascii_only):
    settings.pop("clients", None)
    text = json.dumps(settings, indent=indent, ensure_ascii=ascii_only) + "\n"
    new = with_entries(text, OURS)
    assert json.loads(new) == settings | OURS
    assert with_entries(new, OURS) == new


def test_a_layout_of_somebodys_own_is_kept_to_the_byte():
    text = '{ "a" : [1,2],\n\n    "b": 1.50\n}\n'
    new = with_entries(text, OURS)
    assert new.startswith('{ "a" : [1,2],\n\n    "b": 1.50,\n    "clients": {')
    assert json.loads(new) == {"a": [1, 2], "b": 1.5} | OURS


def test_entries_beside_ours_in_the_same_object_stay():
    text = json.dumps({"clients": {"other": {"enabled": True}}}, indent=4)
    assert json.loads(with_entries(text, OURS)) == {"clients": {"other": {"enabled": True}} | OURS["clients"]}


def test_an_older_command_of_ours_is_replaced():
    text = json.dumps({"clients": {"draftline": {"command": ["/old/draftline", "lsp"]}}}, indent=2)
    assert json.loads(with_entries(text, OURS)) == OURS


def test_crlf_stays():
    text = '{\r\n  "a": 1\r\n}\r\n'
    assert "\n" not in with_entries(text, OURS).replace("\r\n", "")


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_file_gets_ours_alone(text):
    assert json.loads(with_entries(text, OURS)) == OURS


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{\n  // mine\n  "a": 1\n}', "comments"),
        ('{"a": 1,}', "plain JSON"),
        ('\ufeff{"a": 1}', "plain JSON"),
        ("[1]", "object"),
        ('{"a": 1, "a": 2}', "twice"),
        ('{"clients": 1}', "another value for clients"),
        ('{ "clients" : {} }', "laid out"),
        ("[" * 100_000, "nested"),
    ],
)
def test_what_can_not_be_changed_safely_is_refused_with_the_reason(text, why):
    with pytest.raises(CantEdit, match=why):
        with_entries(text, OURS)
