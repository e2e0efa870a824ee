"""Reads the OpenAI API's ``prediction``: text that the answer is expected to hold in part."""

from __future__ import annotations

from typing import Literal

from server.api.fields import Fields

Kind = Literal["content"]
PartKind = Literal["text"]


def read_prediction(fields: Fields) -> str:
    """The text of ``{"type": "content", "content": …}``, which is a string or an array of text parts; "" without one.

    Raises ApiError.
    """
    if not fields.present("prediction"):
        return ""
    prediction = fields.object("prediction")
    prediction.choice("type", None, Kind)
    content = prediction.raw("content")
    if content is None:
        raise prediction.missing("content")
    if isinstance(content, list):
        return "".join(_text(part) for part in prediction.objects("content"))
    if not isinstance(content, str):
        raise prediction.wrong("content", "a string or an array of text parts")
    return prediction.text("content")


def _text(part: Fields) -> str:
    part.choice("type", None, PartKind)
    return part.text("text")
