"""Read the data that a consortium agreed on: a table, images, or a cohort, whose schema follows from its definition."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.data.agreement.schema import AgreedSchema, DataSchema, ImageSchema
from grandrounds.data.readers import find_reader


def parse_schema(plain: Mapping[str, object], *, folder: Path | None = None, where: str = "[data]") -> AgreedSchema:
    """Parse `[data]` as the schema of a table or of images; the schema of a cohort follows from its definition.

    A relative path of a cohort file starts at `folder`; without one, at the working directory.
    """
    if isinstance(plain, Mapping) and "cohort" in plain:
        schema: DataSchema = find_reader("data.cohort schema")(plain, folder, where=where)
        return schema
    kind = ImageSchema if isinstance(plain, Mapping) and "pictures" in plain else DataSchema
    return kind.from_dict(plain, where=where)


def read_schema(path: Path) -> AgreedSchema:
    """Read the schema in a file: schema.json, or the [data] section of consortium.toml."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        reason = getattr(e, "strerror", None) or "not UTF-8 text"
        raise BadInput(
            f"the schema {path} cannot be read: {reason}; give schema.json of the site's folder", code="unreadable-file"
        ) from None
    try:
        content: Any = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except ValueError as e:
        raise BadInput(
            f"the schema {path} is damaged ({e}); take it from the site's folder again", code="damaged-schema"
        ) from None
    if path.suffix == ".toml":
        content = content.get("data", {})
    return parse_schema(content, folder=path.parent, where=f"[data] of {path}")
