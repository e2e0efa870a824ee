"""The settings: one place that is read, checked and published."""

from pathlib import Path

import pytest

from lsp.settings import Settings, read_settings, schema, schema_text

PUBLISHED = Path(__file__).parents[2] / "docs" / "settings.schema.json"
README = Path(__file__).parents[2] / "README.md"


def described(properties, prefix=""):
    for name, value in properties.items():
        yield f"{prefix}{name}", value
        yield from described(value.get("properties", {}), f"{name}.")


def test_the_published_schema_is_that_of_the_settings():
    assert PUBLISHED.read_text(encoding="utf-8") == schema_text(), (
        "run: python -P -m lsp.settings > docs/settings.schema.json"
    )


def test_every_setting_has_a_description_and_a_default():
    for name, value in described(schema()["properties"]):
        assert len(value["description"]) > 20, name
        assert "default" in value or "properties" in value, name


def test_the_readme_names_every_setting():
    text = README.read_text(encoding="utf-8")
    for name, value in described(schema()["properties"]):
        if "properties" not in value:
            assert f"`{name}`" in text, name


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({"debounce_ms": "fast"}, 'setting debounce_ms must be a whole number from 0 to 10000, or "auto"'),
        ({"debounce_ms": ""}, "setting debounce_ms must be"),
        ({"max_tokens": "auto"}, "setting max_tokens must be a whole number from 1 to 4096;"),
        ({"popup": 1}, "setting popup must be true or false;"),
        ({"sources": True}, "setting sources must be an object;"),
        ({"sources": {"path": "no"}}, "setting sources.path must be true or false;"),
    ],
)
def test_a_wrong_value_gives_a_message_that_names_the_key_and_changes_nothing(value, line):
    settings, (problem,) = read_settings({"draftline": value})
    assert problem.startswith(line)
    assert settings == Settings()


def test_the_wait_may_be_a_number_or_follow_the_typing():
    fixed, _ = read_settings({"debounce_ms": 40})
    assert fixed.debounce_ms == 40
    assert read_settings({"debounce_ms": "auto"}, fixed) == (Settings(), [])
