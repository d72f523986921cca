"""Print the shell completion script.

    stethos completion bash >> ~/.bashrc
    stethos completion zsh >> ~/.zshrc
    stethos completion fish > ~/.config/fish/completions/stethos.fish

It completes commands, options and their choices, the runs of ./runs, the clients of a run, detectors, and tables and
columns inside the SQL of `stethos query`.
"""

from __future__ import annotations

import argparse

_SCRIPTS = {
    "bash": """\
_stethos() {
    local word
    COMPREPLY=()
    while IFS= read -r word; do
        COMPREPLY+=("$word")
    done < <(stethos completion --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -o nosort -F _stethos stethos
""",
    "zsh": """\
_stethos() {
    local -a found
    found=("${(@f)$(stethos completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    [[ -n "$found" ]] && compadd -- $found || _files
}
compdef _stethos stethos
""",
    "fish": """\
function __stethos
    set -l words (commandline -opc) (commandline -ct)
    stethos completion --words $words[2..-1] 2>/dev/null
end
complete -c stethos -a '(__stethos)'
""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(_SCRIPTS), nargs="?", default="bash", help="the shell (default: bash)")
    parser.add_argument("--words", nargs=argparse.REMAINDER, help="the words typed so far: print what may follow")


def run(arguments: argparse.Namespace) -> int:
    if arguments.words is None:
        print(_SCRIPTS[arguments.shell], end="")
    else:
        from stethos.cli.task.complete import completions

        for word in completions(arguments.words):
            print(word)
    return 0
