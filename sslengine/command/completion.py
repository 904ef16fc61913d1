"""Print the completion of this command for a shell.

    sslengine completion bash > ~/.local/share/bash-completion/completions/sslengine
    sslengine completion zsh  > ~/.zfunc/_sslengine           (a folder of $fpath)

Start a new shell afterwards.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from sslengine.command.arguments import Argument, make_parser
from sslengine.command.front import VERBS
from sslengine.command.list import KINDS
from sslengine.command.recipes import methods_with_forms

ARGUMENTS = (Argument("shell", choices=("bash", "zsh")),)


def main(arguments: Sequence[str]) -> int:
    shell = make_parser(__name__).parse_args(arguments).shell
    script = f"{_make_function()}complete {_TAKEN} sslengine\n"
    if shell == "zsh":  # the last line completes when zsh reads the file, `complete` after that
        head = "#compdef sslengine\nautoload -U +X bashcompinit && bashcompinit\n"
        script = f"{head}{script}_bash_complete {_TAKEN}\n"
    print(script, end="")
    return 0


def words(verb: str) -> list[str]:
    """Return the flags of a verb, and the words that may follow it."""
    flags, following = _read_arguments(verb)
    return [*flags, *following]


def _read_arguments(verb: str) -> tuple[dict[str, list[str] | None], list[str]]:
    """Return the names that each flag's value may have, and those that follow the verb.

    Of a flag [] is any value, and None that it has no value.
    """
    declared: Sequence[Argument] = importlib.import_module(f"sslengine.command.{verb}").ARGUMENTS
    flags: dict[str, list[str] | None] = {"--help": None}
    following: list[str] = []
    for each in declared:
        if each.flag.startswith("-"):
            names = KINDS[each.listed].names() if each.listed else each.choices or ()
            flags[each.flag] = None if each.kind is bool else list(names)
        else:
            following += each.choices or ()
    return flags, following


def _configs() -> list[str]:
    """List what config=... may be: no recipes of two files, dino/1gpu."""
    return sorted({*KINDS["recipes"].names()}.difference(methods_with_forms()))


# How bash, and zsh by its bashcompinit, take the words of `_sslengine_words`.
_TAKEN = "-o default -o bashdefault -F _sslengine_words"


def _make_function() -> str:
    """Write the function that completes. Empty `words` leave it to the shell, as files."""
    cases = []
    for verb in VERBS:
        flags, following = _read_arguments(verb)
        cases += [f"    '{verb} {flag} '*) words='{' '.join(values)}' ;;"
                  for flag, values in flags.items() if values is not None]  # fmt: skip
        cases += [f"    '{verb} '*' -'*) words='{' '.join(flags)}' ;;",
                  f"    '{verb} '*) words='{' '.join(following)}' ;;"]  # fmt: skip
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
