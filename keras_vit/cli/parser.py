"""The parser of `keras-vit`: inputs by position or by flag, and what it says about wrong words.

One rule for all commands: each input of a command, such as its model and its data, is a flag and
has a position. Words that are no flags are the inputs that no flag gives, in the order of the
usage; where there are fewer words than inputs, those in brackets are left out.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from keras_vit.cli.arguments import Argument, Command
from keras_vit.cli.commands import GROUPS, all_commands
from keras_vit.cli.settings import read_settings
from keras_vit.errors import printable

_LISTED = 3  # names that are similar to a wrong one


def build_parser(commands: Iterable[Command] | None = None) -> Parser:
    """Builds the parser of the command line from a table of commands; `None` takes all."""
    parser = Parser(
        prog="keras-vit", description="The Vision Transformer for Keras 3, from the command line."
    )
    version = f"{parser.prog} {sys.modules['keras_vit'].__version__}"
    parser.add_argument("--version", action="version", version=version)
    branches: dict[tuple[str, ...], Any] = {
        (): parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    }
    commands = tuple(all_commands() if commands is None else commands)
    names = {command.name for command in commands}
    for command in commands:
        *group, name = command.name.split()
        if " ".join(group) in names:  # as `detect` and `detect train`
            group, name = [], command.name
            parser.joined.add(name)
        key = tuple(group)
        if key not in branches:
            words = branches[()].add_parser(" ".join(group), help=GROUPS.get(" ".join(group)))
            branches[key] = words.add_subparsers(required=True, metavar="COMMAND")
        about = command.summary
        if command.inputs:
            about += f" By position or flag: {', '.join(x.shown for x in command.inputs)}."
        leaf: Parser = branches[key].add_parser(name, help=command.summary, description=about)
        usage = (parser.prog, command.name, *map(_usage, command.inputs), "[options]")
        leaf.usage = " ".join(usage)
        groups: dict[str | None, Any] = {None: leaf}
        for each in command.arguments:
            heading = None if each.is_input else each.group
            if heading not in groups:
                groups[heading] = leaf.add_argument_group(heading)
            leaf.flags += each.add_to(groups[heading])
        leaf.add_argument("--debug", action="store_true", help="print the traceback of an error")
        leaf.flags += ("--debug", "--help")
        leaf.set_defaults(command=command, leaf=leaf)
    return parser


class Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviations: a new flag never changes what an old script means."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self.flags: list[str] = []
        self.joined: set[str] = set()  # commands of several words that begin with another command

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses words, and reports everything that is wrong with them at once."""
        words = list(sys.argv[1:] if args is None else args)
        if " ".join(words[:2]) in self.joined:
            words[:2] = [" ".join(words[:2])]
        end = words.index("--") if "--" in words else len(words)
        found, rest = self.parse_known_args(words[:end], namespace)
        options: dict[str, Any] = found.__dict__
        leaf, command = options.pop("leaf"), options["command"]
        unknown = [word for word in rest if re.match("--?[A-Za-z]", word) and " " not in word]
        problems = [f"There is no flag {x}{_advice(x, leaf.flags) or '.'}" for x in unknown]
        inputs = [word for word in (*rest, *words[end + 1 :]) if word not in unknown]
        placed, extra = _place(command, options, inputs)
        options.update(placed)
        stored, path = {}, options.get("config")
        if path:
            stored = options["config"] = read_settings(path, command.settings, command.name)
        missing = [x for x in command.arguments if x.is_required]
        missing = [x for x in missing if not (options.get(x.dest) or stored.get(x.dest))]
        if missing:
            taken = [f"{value!r} was taken for {name.upper()}" for name, value in placed.items()]
            listed = ", ".join(f"{x.shown} ({x.flag})" if x.is_input else x.flag for x in missing)
            problems.append("; ".join([f"Missing: {listed}", *taken]) + ".")
        if extra and not unknown:  # which may be the values of unknown flags
            problems.append(f"Without a meaning: {', '.join(extra)}.")
        if problems:
            leaf.error(" ".join(problems))
        if command.check is not None:
            command.check({**stored, **options})
        return found

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message)
        if choice is not None:
            message += _advice(choice[1], [name.strip("'") for name in choice[2].split(", ")])
        super().error(printable(message))


def _usage(each: Argument) -> str:
    dots = "..." if each.takes_many else ""
    return f"{each.shown}{dots}" if each.is_required else f"[{each.shown}{dots}]"


def _place(
    command: Command, given: dict[str, Any], words: list[str]
) -> tuple[dict[str, Any], list[str]]:
    """Words as the inputs that no flag gives, by name, and the words that are left."""
    free = [each for each in command.inputs if not given.get(each.dest)]
    spare = len(words) - sum(each.is_required for each in free)
    found: dict[str, Any] = {}
    for each in free:
        most = len(words) if each.takes_many else 1 - each.is_required
        more = min(max(spare, 0), most)
        taken, words = words[: each.is_required + more], words[each.is_required + more :]
        spare -= more
        if taken:
            found[each.dest] = taken if each.takes_many else taken[0]
    return found, words


def _advice(word: str, known: Sequence[str]) -> str:
    """A question after the names that are most similar to a wrong one, or nothing."""
    bare = word.partition("=")[0].replace("_", "-")
    if word.startswith("-"):
        bare = f"--{bare.lstrip('-')}"
    near = sorted((name for name in known if name.startswith(bare)), key=len)
    near = near or [name for name in known if bare == "--" + "".join(re.findall(r"-(\w)", name))]
    near = near or difflib.get_close_matches(bare, known, n=1)
    return f": did you mean {' or '.join(near[:_LISTED])}?" if near else ""
