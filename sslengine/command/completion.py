"""Print the completion of this command for a shell.

    sslengine completion bash > ~/.local/share/bash-completion/completions/sslengine
    sslengine completion zsh  > ~/.zfunc/_sslengine           (a folder of $fpath)

Start a new shell afterwards.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from sslengine.command.arguments import Argument, build_parser
from sslengine.command.front import VERBS
from sslengine.command.list import KINDS
from sslengine.command.recipes import methods_with_forms

ARGUMENTS = (Argument("shell", choices=("bash", "zsh")),)


def make_parser() -> argparse.ArgumentParser:
    return build_parser("completion", __doc__, ARGUMENTS)


def main(arguments: Sequence[str]) -> int:
    shell = make_parser().parse_args(arguments).shell
    print(_bash() if shell == "bash" else _zsh(), end="")
    return 0


def words(verb: str) -> list[str]:
    """Return the flags of a verb, and the words that may follow it."""
    return [*_flags(verb), *_positional(verb)]


def _configs() -> list[str]:
    """List what config=... may be: no recipes of two files, dino/1gpu."""
    return sorted({*KINDS["recipes"].names()}.difference(methods_with_forms()))


def _arguments(verb: str) -> Sequence[Argument]:
    declared: Sequence[Argument] = importlib.import_module(f"sslengine.command.{verb}").ARGUMENTS
    return declared


def _flags(verb: str) -> dict[str, list[str] | None]:
    """Return the names that each flag's value may have; [] for any; None if it has no value."""
    found: dict[str, list[str] | None] = {"--help": None}
    for each in _arguments(verb):
        if each.flag.startswith("-"):
            names = KINDS[each.listed].names() if each.listed else each.choices or ()
            found[each.flag] = None if each.kind is bool else list(names)
    return found


def _positional(verb: str) -> list[str]:
    given = (each.choices or () for each in _arguments(verb) if not each.flag.startswith("-"))
    return [word for choices in given for word in choices]


# How bash, and zsh by its bashcompinit, take the words of `_sslengine_words`.
_TAKEN = "-o default -o bashdefault -F _sslengine_words"


def _words_of_bash() -> str:
    """Empty `words` leave the word to the shell, which completes files."""
    cases = []
    for verb in VERBS:
        flags = _flags(verb)
        cases += [f"    '{verb} {flag} '*) words='{' '.join(values)}' ;;"
                  for flag, values in flags.items() if values is not None]  # fmt: skip
        cases += [f"    '{verb} '*' -'*) words='{' '.join(flags)}' ;;",
                  f"    '{verb} '*) words='{' '.join(_positional(verb))}' ;;"]  # fmt: skip
    verbs, configs = " ".join(VERBS), " ".join(_configs())
    return f"""\
_sslengine_words() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} last=${{COMP_WORDS[COMP_CWORD-1]}} words= before=
  # --flag=value is three words of bash's, and one of zsh's.
  case "$word" in
    =) word= ;;
    ?*=*) last=${{word%%=*}}; before=$last=; word=${{word#*=}} ;;
    *) if [ "$last" = = ]; then last=${{COMP_WORDS[COMP_CWORD-2]}}; fi ;;
  esac
  case "${{COMP_WORDS[1]}} $last $word" in
    *' config '*) words='{configs}' ;;
    *" sslengine "*) words='{verbs} --version --help' ;;
{chr(10).join(cases)}
  esac
  COMPREPLY=( $(compgen -P "$before" -W "$words" -- "$word") )
}}
"""


def _bash() -> str:
    return f"{_words_of_bash()}complete {_TAKEN} sslengine\n"


def _zsh() -> str:
    """The last line completes the first time, when zsh reads the file; `complete` after that."""
    return (
        f"#compdef sslengine\nautoload -U +X bashcompinit && bashcompinit\n{_words_of_bash()}"
        f"complete {_TAKEN} sslengine\n_bash_complete {_TAKEN}\n"
    )
