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
from sslengine.command.list import KINDS
from sslengine.command.recipes import methods_with_forms

# What the value of a flag is a name of.
NAMED = {"--method": "methods", "--recipe": "recipes", "--to": "formats"}


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
    return [*_flags(verb), *_positional(verb)]


def _configs() -> list[str]:
    """What config=... may be: without the recipes of two files, dino/1gpu."""
    return sorted({*KINDS["recipes"].names()}.difference(methods_with_forms()))


def _actions(verb: str) -> list[argparse.Action]:
    parser: argparse.ArgumentParser
    parser = importlib.import_module(f"sslengine.command.{verb}").make_parser()
    actions = list(parser._actions)
    for kinds in [each for each in actions if isinstance(each, argparse._SubParsersAction)]:
        inner = [action for each in kinds.choices.values() for action in each._actions]
        actions += [action for action in inner if action.option_strings]
    return actions


def _flags(verb: str) -> dict[str, list[str] | None]:
    """The names that the value of each flag may have; [] for any; None if it has no value."""
    found: dict[str, list[str] | None] = {}
    for action in _actions(verb):
        for name in action.option_strings:
            if name.startswith("--"):
                taken = name in NAMED and (verb, name) != ("convert", "--to")
                named = KINDS[NAMED[name]].names() if taken else action.choices or ()
                found[name] = None if action.nargs == 0 else list(named)
    return found


def _positional(verb: str) -> list[str]:
    given = (each.choices for each in _actions(verb) if not each.option_strings and each.choices)
    return [str(word) for choices in given for word in choices]


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


_OF_FISH = """\
function __sslengine_first
    test (count (commandline -opc)) -eq 1
end
function __sslengine_verb
    set -l words (commandline -opc)
    test (count $words) -gt 1; and test $words[2] = $argv[1]
end
"""


def _fish() -> str:
    lines = [
        f"complete -c sslengine -n __sslengine_first -a {verb} -d {_quoted(what)}"
        for verb, what in VERBS.items()
    ]
    configs = " ".join(f"config={name}" for name in _configs())
    lines += [
        f"complete -c sslengine -n {place} -a {_quoted(configs)}"
        for place in ("__sslengine_first", "'__sslengine_verb train'")
    ]
    for verb in VERBS:
        given = f"complete -c sslengine -n '__sslengine_verb {verb}'"
        for flag, values in _flags(verb).items():
            named = f" -x -a {_quoted(' '.join(values))}" if values else ""
            follows = named or (" -r" if values == [] else "")
            lines.append(f"{given} -l {flag[2:]}{follows}")
        lines += [f"{given} -a {word}" for word in _positional(verb)]
    return "\n".join([_OF_FISH.rstrip(), *lines]) + "\n"


def _quoted(text: str) -> str:
    """As fish has it: in quotes a backslash is before a quote alone."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
