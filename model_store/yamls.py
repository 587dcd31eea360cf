"""Read a person's YAML without two of its traps: ``1e-3`` is a number, and a key that stands twice is a mistake."""

from __future__ import annotations

import re
from typing import Any

import yaml

_EXPONENT = re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen and key != "<<":
                raise yaml.constructor.ConstructorError(
                    "while reading a mapping",
                    node.start_mark,
                    f"the key {key!r} stands there twice",
                    key_node.start_mark,
                )
            seen.add(key if isinstance(key, str) else id(key_node))
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))


def load(text: str) -> Any:
    """The document as plain Python values.

    Raises:
        yaml.YAMLError: it is malformed.
    """
    return yaml.load(text, Loader=_Loader)  # a SafeLoader: builds plain values only
