"""Reads YAML that anybody may have written: what is wrong with it is a `yaml.YAMLError`, and reading costs what it is long.

PyYAML leaves a tag that does not fit its value (`!!bool x`) to whatever Python raises, and its numbers in base 60
(`1:10:10`) take time that grows with the square of their length. So tags are those of JSON, and numbers decimal.
"""

import re
from typing import Any

import yaml

_TRIPS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)  # what PyYAML trips over
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_TAGS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "str", "seq", "map"))
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(?:[0-9]{1,18}\.[0-9]{0,18}|\.[0-9]{1,18})(?:[eE][-+]?[0-9]{1,3})?|[-+]?\.inf|\.nan", re.IGNORECASE)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own way
        first: [row for row in rows if row[0] not in (*_NUMBERS, "tag:yaml.org,2002:timestamp")]
        for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {  # noqa: RUF012
        tag: make for tag, make in yaml.SafeLoader.yaml_constructors.items() if tag is None or tag in _TAGS
    }

    def number(self, node: yaml.ScalarNode) -> int | float:
        text = self.construct_scalar(node)
        if _INT.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text.replace(".inf", "inf").replace(".nan", "nan"))
        raise yaml.constructor.ConstructorError(None, None, "found a number that is none", node.start_mark)


for _tag, _pattern in zip(_NUMBERS, (_INT, _FLOAT), strict=True):
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern.pattern})$"), list("-+.0123456789"))
    _Loader.add_constructor(_tag, _Loader.number)


def parse_yaml(text: str) -> Any:
    """The one document in `text`, None for an empty one. Raises yaml.YAMLError and nothing else."""
    try:
        return yaml.load(text, Loader=_Loader)
    except _TRIPS as error:
        raise yaml.YAMLError(f"not valid YAML ({type(error).__name__})") from error
