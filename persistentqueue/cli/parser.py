"""Verbs and their parameters: each is declared once, and its parser, its help and its reference follow from that.

``argparse`` reads the options, and ``Verb`` assigns the arguments. They may stand before, between and behind the
options, and each word behind ``--`` is one. ``ArgumentParser.parse_intermixed_args`` would lose an item that is ``--``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from math import inf, nan
from typing import Any, NamedTuple, NoReturn, TypeVar

PROGRAM = "persistentqueue"
GROUPS = LOOK, USE, KEEP, SET_UP = "Read: needs no lock, changes nothing", "Use", "Maintain", "Set up"
"""The groups of verbs, in the order of the help."""
_MISSING = "the following arguments are required: "
"""Begins the message of ``argparse`` about options that are missing."""
VERBS: dict[str, Verb] = {}
"""All declared verbs by name. The import of a module with verbs declares them."""
Function = TypeVar("Function", bound=Callable[..., int])


class UsageError(Exception):
    """A command line that is malformed, or whose arguments contradict each other."""


class Number:
    """The type of a parameter that is a number from ``least`` to ``most``; both bounds are allowed."""

    def __init__(self, kind: type[int] | type[float], least: float, most: float = inf) -> None:
        self._kind, self._least, self._most = kind, least, most

    def __call__(self, text: str) -> float:
        """Return the number in the text. Raises ``argparse.ArgumentTypeError``."""
        try:
            value = self._kind(text)
        except ValueError:
            value = nan
        if not self._least <= value <= self._most:  # nan is neither
            what = "a whole number" if self._kind is int else "a number"
            raise argparse.ArgumentTypeError(f"expected {what}, {self}; found {text!r}")
        return value

    def __str__(self) -> str:
        return f"at least {self._least:,}" if self._most == inf else f"from {self._least:,} to {self._most:,}"


class Parameter(NamedTuple):
    """An argument or an option of a verb: names and keywords of ``ArgumentParser.add_argument``."""

    names: tuple[str, ...]
    keywords: dict[str, Any]
    completes: str
    """The kind of words that a shell completes: ``file``, ``directory`` or ``queue``; empty for any other."""

    @property
    def is_option(self) -> bool:
        """True for an option, False for an argument."""
        return self.names[0].startswith("-")

    @property
    def key(self) -> str:
        """The parameter of the verb's function that gets the value."""
        return str(self.keywords.get("dest") or self.names[-1].lstrip("-").replace("-", "_"))

    @property
    def metavar(self) -> str:
        """The word that stands for the value; empty if an option has no value."""
        if self.keywords.get("action") not in {None, "append"}:
            return ""
        return str(self.keywords.get("metavar") or self.key.upper())

    @property
    def title(self) -> str:
        """The names and the value, as help texts show them."""
        return f"{', '.join(self.names)} {self.metavar}".rstrip() if self.is_option else self.metavar

    @property
    def usage(self) -> str:
        """The title as a line of usage shows it."""
        suffix = {"?": "]", "*": " ...]"}.get(self.keywords.get("nargs", ""))
        return self.title if suffix is None else f"[{self.title}{suffix}"

    @property
    def facts(self) -> str:
        """The default, the choices and the bounds of the value; empty if there are none."""
        default, choices, kind = (self.keywords.get(each) for each in ("default", "choices", "type"))
        is_required = self.keywords.get("required") or not (self.is_option or "nargs" in self.keywords)
        found = ["required"] if is_required else []
        if default and self.metavar:
            found.append(f"default: {default:,}" if isinstance(default, int | float) else f"default: {default}")
        if choices:
            found.append(", ".join(choices))
        return "; ".join([*found, *([str(kind)] if isinstance(kind, Number) else [])])

    def add_to(self, parser: argparse._ActionsContainer) -> argparse.Action:
        """Add the parameter to a parser."""
        facts = f" [{self.facts}]" if self.facts else ""
        keywords = self.keywords | {"help": self.keywords["help"] + facts}
        if self.metavar:
            keywords["metavar"] = self.metavar
        return parser.add_argument(*self.names, **keywords)


def parameter(*names: str, completes: str = "", **keywords: Any) -> Parameter:
    """Declare a parameter of verbs by what ``ArgumentParser.add_argument`` takes. An argument is a string."""
    return Parameter(names, keywords, completes)


JSON = parameter("--json", dest="as_json", action="store_true", help="Print the result, and errors, as JSON.")
HELP = parameter("-h", "--help", action="help", help="Print this help, or that of a command, and end.")
VERSION = parameter("--version", action="store_true", help="Print the version, and end.")
COMMON = (JSON, VERSION, HELP)
"""The options that may stand before a verb."""


class Verb(NamedTuple):
    """A verb of the command line. Its function gets the value of each parameter by name, and returns the status."""

    group: str
    name: str
    function: Callable[..., int]
    parameters: tuple[Parameter, ...]

    @property
    def arguments(self) -> list[Parameter]:
        """The parameters without hyphens, in their order."""
        return [each for each in self.parameters if not each.is_option]

    @property
    def options(self) -> list[Parameter]:
        """The parameters with hyphens."""
        return [each for each in self.parameters if each.is_option]

    @property
    def help(self) -> str:
        """The docstring of the function, with each paragraph on one line."""
        paragraphs = (self.function.__doc__ or "").split("\n\n")
        return "\n\n".join(" ".join(each.split()) for each in paragraphs)

    @property
    def summary(self) -> str:
        """The first paragraph of the help."""
        return self.help.partition("\n\n")[0]

    @property
    def usage(self) -> str:
        """The line of usage, with all arguments and with the options that are required."""
        required = [each for each in self.options if each.keywords.get("required")]
        words = [PROGRAM, self.name, *(each.usage for each in (*self.arguments, *required)), "[OPTION ...]"]
        return " ".join(words)

    def help_text(self) -> str:
        """Return the help of the verb, as wide as the terminal."""
        parser = argparse.ArgumentParser(
            usage=self.usage, description=self.help, formatter_class=_Paragraphs, add_help=False
        )
        for each in (*self.parameters, HELP):
            each.add_to(parser)
        return parser.format_help()

    def values(self, before: Sequence[str], behind: Sequence[str] = ()) -> dict[str, Any]:
        """Return the value of each parameter, by the words before ``--`` and those behind it. Raises ``UsageError``."""
        parser = _Options(self.name, self.usage)
        for each in self.options:
            each.add_to(parser)
        options, words = parser.parse_known_args(before)
        for word in words:
            if word.startswith("-"):
                names = [name for each in (*self.options, HELP) for name in each.names if word != "-"]
                raise UsageError(
                    f"{self.name}: no such option: {word}{suggestion(word.partition('=')[0], names)} "
                    "An argument that begins with a hyphen stands behind --."
                )
        return vars(options) | dict(self._assigned([*words, *behind]))

    def _assigned(self, words: list[str]) -> Iterator[tuple[str, object]]:
        """Yield the value of each argument."""
        for each in self.arguments:
            nargs, choices = each.keywords.get("nargs"), each.keywords.get("choices")
            if nargs == "*":
                yield each.key, words
                words = []
            elif words:
                word, *words = words
                if choices and word not in choices:
                    raise UsageError(
                        f"{self.name}: {each.title}: expected {', '.join(choices)}; found {word!r}"
                        f"{suggestion(word, choices)}"
                    )
                yield each.key, word
            elif nargs == "?":
                yield each.key, None
            else:
                raise UsageError(f"{self.name}: {each.title} is missing. Usage: {self.usage}")
        if words:
            raise UsageError(f"{self.name}: unexpected argument: {words[0]!r}. Usage: {self.usage}")


def verb(group: str, name: str, *parameters: Parameter) -> Callable[[Function], Function]:
    """Return a decorator that declares a verb; its docstring is the help, and ``--json`` is added to its parameters."""

    def declare(function: Function) -> Function:
        """Declare the verb, and return its function."""
        VERBS[name] = Verb(group, name, function, (*parameters, JSON))
        return function

    return declare


class _Paragraphs(argparse.HelpFormatter):
    """Formats a description with its paragraphs."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(fill(each, width, indent) for each in text.split("\n\n"))


class _Options(argparse.ArgumentParser):
    """Reads the options of a verb, and leaves all other words alone. An error is raised, and not printed."""

    def __init__(self, name: str, usage_line: str) -> None:
        super().__init__(name, add_help=False, allow_abbrev=False)
        self._usage_line = usage_line

    def error(self, message: str) -> NoReturn:
        """Raise ``UsageError``."""
        if message.startswith(_MISSING):
            raise UsageError(f"{self.prog}: {message.removeprefix(_MISSING)} is missing. Usage: {self._usage_line}")
        raise UsageError(f"{self.prog}: {message.removeprefix('argument ')}")


def command_help(description: str) -> str:
    """Return the help of the command: all verbs by group, and the options that may stand before a verb."""
    usage = f"{PROGRAM} [--json] COMMAND [ARGUMENT ...] [OPTION ...]"
    parser = argparse.ArgumentParser(PROGRAM, usage=usage, description=description, add_help=False)
    for group in GROUPS:
        section = parser.add_argument_group(group)
        for each in in_group(group):  # an argument of this name looks in a help text as a verb should
            section.add_argument(each.name, help=each.summary)
    for option in COMMON:
        option.add_to(parser)
    return parser.format_help()


def in_group(group: str) -> list[Verb]:
    """Return the verbs of a group, in the order of their declarations."""
    return [each for each in VERBS.values() if each.group == group]


def split(arguments: Sequence[str]) -> tuple[list[str], list[str], bool]:
    """Return the words before ``--`` without ``--json``, the words behind ``--``, and whether ``--json`` was there."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    before = arguments[:at]
    return [each for each in before if each != "--json"], list(arguments[at + 1 :]), "--json" in before


def verb_named(name: str) -> Verb:
    """Return a verb. Raises ``UsageError``, with the verb or the option that is most like the name."""
    if name in VERBS:
        return VERBS[name]
    what = "option" if name.startswith("-") else "command"
    names = [each for option in COMMON for each in option.names] if what == "option" else list(VERBS)
    raise UsageError(f"no such {what}: {name}{suggestion(name, names)} {PROGRAM} --help lists all.")


def suggestion(word: str, names: Iterable[str]) -> str:
    """Return the end of a sentence about a wrong word: a question with the most similar name, or a full stop."""
    near = get_close_matches(word, list(names), 1)
    return f"; did you mean {near[0]}?" if near else "."
