"""Print the completion of this command for a shell.

    sslengine completion bash > ~/.local/share/bash-completion/completions/sslengine
    sslengine completion zsh  > ~/.zfunc/_sslengine           (a folder of $fpath)
    sslengine completion fish > ~/.config/fish/completions/sslengine.fish

Start a new shell afterwards.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from sslengine.command.front import VERBS


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sslengine completion", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("shell", choices=tuple(SHELLS))
    return parser


def main(arguments: Sequence[str]) -> int:
    print(SHELLS[make_parser().parse_args(arguments).shell](), end="")
    return 0


def words(verb: str) -> list[str]:
    """The flags of a verb, and the words that may follow it."""
    parser = importlib.import_module(f"sslengine.command.{verb}").make_parser()
    found: list[str] = []
    for action in parser._actions:
        found += [each for each in action.option_strings if each.startswith("--")]
        if not action.option_strings and action.choices:
            found += list(action.choices)
    return found


def _bash() -> str:
    cases = "\n".join(f"    {verb}) words='{' '.join(words(verb))}' ;;" for verb in VERBS)
    return f"""\
_sslengine() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} words=
  case $COMP_CWORD in 1) words='{" ".join(VERBS)} --version --help' ;;
  *) case ${{COMP_WORDS[1]}} in
{cases}
    esac ;;
  esac
  COMPREPLY=( $(compgen -W "$words" -- "$word") )
}}
complete -o default -o bashdefault -F _sslengine sslengine
"""


def _zsh() -> str:
    return f"#compdef sslengine\nautoload -U +X bashcompinit && bashcompinit\n{_bash()}"


def _fish() -> str:
    lines = [
        f"complete -c sslengine -n __fish_use_subcommand -a {verb} -d '{what}'"
        for verb, what in VERBS.items()
    ]
    for verb in VERBS:
        given = f"complete -c sslengine -n '__fish_seen_subcommand_from {verb}'"
        lines += [f"{given} -l {each[2:]}" if each.startswith("--") else f"{given} -a {each}"
                  for each in words(verb)]  # fmt: skip
    return "\n".join(lines) + "\n"


SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
