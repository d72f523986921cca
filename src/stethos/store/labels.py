"""What people add to a run: tags, a note, another title, and that it is archived; a small file beside its rows."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from stethos.errors import UsageError
from stethos.record.border import read_file
from stethos.record.place import RunPlace, write_json

FILE = "labels.json"
_LARGEST = 64 << 10
_MOST_TAGS, _LONGEST_TAG, _LONGEST_TITLE, _LONGEST_NOTE = 20, 60, 100, 10_000
_writing = threading.Lock()


@dataclass(frozen=True, slots=True)
class Labels:
    """What is written beside a run; `version` grows with every change."""

    tags: tuple[str, ...] = ()
    note: str = ""
    title: str = ""
    is_archived: bool = False
    version: int = 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_labels(run: Path) -> Labels:
    """The labels of a run; none where there is no file, or it is not one of ours."""
    try:
        content = json.loads(read_file(run / FILE, _LARGEST))
        return _checked(Labels(), content, int(content["version"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, UsageError):
        return Labels()


def change_labels(place: RunPlace, changes: Mapping[str, Any]) -> Labels:
    """Write labels; UsageError if somebody else has since `changes["version"]`, or they cannot be written."""
    if not place.is_ours():
        raise UsageError(f"{place.name} was not recorded here by you", hint="only your own runs can be labelled")
    with _writing:
        known = read_labels(place.path)
        if changes.get("version") != known.version:
            raise UsageError("the labels have been changed meanwhile", hint="look at them again, then change them")
        labels = _checked(known, changes, known.version + 1)
        try:
            write_json(place.path / FILE, labels.as_dict())
        except OSError as error:
            raise UsageError(f"cannot write into {place.name}: {error.strerror}") from None
    return labels


def _checked(known: Labels, changes: Mapping[str, Any], version: int) -> Labels:
    """The labels with what is given; UsageError if something is not what it must be."""
    tags = changes.get("tags", known.tags)
    if not isinstance(tags, list | tuple) or not all(isinstance(tag, str) for tag in tags):
        raise UsageError("tags are a list of texts")
    kept = tuple(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
    if len(kept) > _MOST_TAGS or any(len(tag) > _LONGEST_TAG for tag in kept):
        raise UsageError(f"more than {_MOST_TAGS} tags, or one of more than {_LONGEST_TAG} characters")
    texts = {}
    for name, longest in (("note", _LONGEST_NOTE), ("title", _LONGEST_TITLE)):
        text = changes.get(name, getattr(known, name))
        if not isinstance(text, str) or len(text) > longest:
            raise UsageError(f"a {name} is a text of at most {longest:,} characters")
        texts[name] = text.strip()
    is_archived = changes.get("is_archived", known.is_archived)
    if not isinstance(is_archived, bool):
        raise UsageError("is_archived is true or false")
    return replace(known, tags=kept, is_archived=is_archived, version=version, **texts)
