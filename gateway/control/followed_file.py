"""A small YAML file of people's wishes, read again when it changes; what is wrong in it leaves the last good value.

Hostile like everything in the directory: it must be a regular file inside the root, it is bounded, and its values are
checked by the parser that the owner gives.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml

from gateway.control.files import DISK, FileLayer, FileMark, opened
from gateway.control.plain_yaml import parse_yaml
from gateway.control.verdicts import Invalid, quoted

MAX_BYTES = 1024 * 1024
T = TypeVar("T")


class FollowedFile(Generic[T]):
    """`parse` turns the document into a value and raises ValueError with a sentence; no file means `empty`."""

    def __init__(self, path: Path, root: Path, parse: Callable[[Any], T], empty: T, *, layer: FileLayer = DISK) -> None:
        self._path, self._root, self._parse, self._empty, self._layer = path, root, parse, empty, layer
        self._mark: FileMark | None = None
        self.value = empty
        self.trouble = ""  # why the file as it is now is not followed

    def __repr__(self) -> str:
        return f"<FollowedFile {self._path.name}{': ' + self.trouble if self.trouble else ''}>"

    def read(self) -> T:
        """Blocking. The value of the file now, or the last good one; never raises."""
        try:
            mark = FileMark.of(self._path.name, self._layer.stat(str(self._path)))
        except (FileNotFoundError, NotADirectoryError):
            self._mark, self.value, self.trouble = None, self._empty, ""
            return self.value
        except OSError as error:
            self.trouble = f"cannot be read: {error.strerror}"
            return self.value
        if mark != self._mark:
            self._mark = mark
            self._follow()
        return self.value

    def _follow(self) -> None:
        try:
            self.value = self._parse(parse_yaml(self._text()))
            self.trouble = ""
        except Invalid as refused:
            self.trouble = refused.reason
        except OSError as error:
            self._mark, self.trouble = None, f"cannot be read: {error.strerror}"
        except yaml.MarkedYAMLError as error:
            where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
            self.trouble = f"is not valid YAML: {where}{quoted(error.problem, 100)}"
        except (yaml.YAMLError, UnicodeDecodeError):
            self.trouble = "is not valid YAML"
        except ValueError as error:
            self.trouble = str(error)

    def _text(self) -> str:
        with opened(str(self._path), os.path.realpath(self._root), self._layer) as (descriptor, status):
            if status.st_size > MAX_BYTES:
                raise ValueError(f"is longer than {MAX_BYTES} bytes")
            return os.read(descriptor, MAX_BYTES).decode()
