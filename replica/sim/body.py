"""Reads request bodies with vLLM's own complaints about them."""

import json
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import FormParser, parse_options_header

from replica.sim.errors import Refused, detail, error, invalid, unsupported_media
from replica.sim.http import JSON, Request


def json_object(request: Request, *, checked_type: bool = True) -> dict[str, Any]:
    """The body; raises Refused."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if checked_type and media != JSON:
        raise unsupported_media()
    if not request.body:
        raise invalid(("missing", "body", "Field required", None))
    try:
        content = json.loads(request.body)
    except UnicodeDecodeError as problem:
        raise detail(400, "There was an error parsing the body") from problem
    except json.JSONDecodeError as problem:
        location = f"body.{problem.pos}"
        raise invalid(("json_invalid", location, "JSON decode error", {}), context={"error": problem.msg}) from problem
    if not isinstance(content, dict):
        text = "Input should be a valid dictionary or object to extract fields from"
        raise invalid(("model_attributes_type", "body", text, content))
    return content


def require(body: dict[str, Any], *names: str) -> None:
    missing = [("missing", f"body.{name}", "Field required", body) for name in names if name not in body]
    if missing:
        raise invalid(*missing)


def text_field(body: dict[str, Any], name: str) -> str:
    value = body[name]
    if not isinstance(value, str):
        raise invalid(("string_type", f"body.{name}", "Input should be a valid string", value))
    return value


def optional_text(body: dict[str, Any], name: str) -> str | None:
    return None if body.get(name) is None else text_field(body, name)


def whole_number(body: dict[str, Any], name: str, default: int | None) -> int | None:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        text = "Input should be a valid integer, unable to parse string as an integer"
        raise invalid(("int_parsing", f"body.{name}", text, value))
    return value


def form(request: Request) -> dict[str, str]:
    """The fields of a multipart form; a file counts as a field with its name. Raises Refused."""
    kind, parameters = parse_options_header(request.headers.get("content-type", ""))
    boundary = parameters.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise invalid(("missing", "body.file", "Field required", None))
    fields: dict[str, str] = {}

    def on_field(field: Any) -> None:
        fields[field.field_name.decode()] = (field.value or b"").decode("utf-8", "replace")

    def on_file(file: Any) -> None:
        fields[file.field_name.decode()] = (file.file_name or b"").decode("utf-8", "replace")

    parser = FormParser("multipart/form-data", on_field, on_file, boundary=boundary)
    try:
        parser.write(request.body)
        parser.finalize()
    except FormParserError as problem:
        raise _bad_form() from problem
    if "file" not in fields:
        raise invalid(("missing", "body.file", "Field required", None))
    return fields


def _bad_form() -> Refused:
    return error(400, "Bad Request", "There was an error parsing the body")
