"""Docstrings as Markdown: ``name:  what it is`` lines, in which records describe their fields, become a list."""

import ast
import re

import griffe

# "weight, bias:   text", and further lines of the same text below, further in.
FIELD = re.compile(r"^(?P<names>\w+(?:, \w+)*):\s+(?P<text>\S.*(?:\n {4,}\S.*)*)$", re.MULTILINE)


def as_markdown(docstring: str) -> str:
    """The docstring with its paragraphs of fields as lists."""
    return "\n\n".join(_fields(part) if FIELD.match(part) else part for part in docstring.split("\n\n"))


def _fields(paragraph: str) -> str:
    def item(found: re.Match[str]) -> str:
        names = ", ".join(f"`{name}`" for name in found["names"].split(", "))
        return f"- {names}: {' '.join(found['text'].split())}"

    return FIELD.sub(item, paragraph)


class Fields(griffe.Extension):
    """Rewrites the docstrings of classes, where records are described and enumerations say their sentences."""

    def on_class(self, *, cls: griffe.Class, **_: object) -> None:
        """Called for every class, with its members."""
        if cls.docstring:
            cls.docstring.value = as_markdown(cls.docstring.value)
            if [str(base) for base in cls.bases] == ["Enum"]:
                cls.docstring.value += "\n\n" + _sentences(cls)


def _sentences(cls: griffe.Class) -> str:
    values = {name: ast.literal_eval(str(member.value)) for name, member in cls.attributes.items()}
    return "\n".join(f"- `{name}`: {value}" for name, value in values.items())
