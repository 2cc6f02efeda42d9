"""`t2t completion`: the script with which a shell completes commands and options."""

import re
from contextlib import redirect_stdout, suppress
from io import StringIO
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional

from t2t.commands.options import option


def completion(
    shell: Annotated[
        Positional[Literal["bash", "zsh", "fish"]],
        option("The shell: bash, zsh or fish.", "", "SHELL"),
    ],
) -> None:
    """Print the script that completes commands, options and their values.

    The shell runs the script when it starts; print it again after an update of t2t.

    Examples:
      eval "$(t2t completion bash)"
      t2t completion bash > ~/.local/share/bash-completion/completions/t2t
      t2t completion zsh > ~/.zfunc/_t2t
      t2t completion fish > ~/.config/fish/completions/t2t.fish
    """
    from t2t.commands import COMMANDS
    from t2t.commands.parse import PARSING

    printed = StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="t2t",
            args=["--tyro-write-completion", shell, "-"],
            config=PARSING,
        )
    # None, of an optional option, is not a choice.
    script = re.sub(r"'None', |, 'None'", "", printed.getvalue()).rstrip()
    print(with_files(script) if shell == "bash" else script)


def with_files(script: str) -> str:
    """Lets bash itself complete files where the script knows nothing better."""
    for before, after in (
        ("complete -F ", "complete -o default -F "),
        ('COMPREPLY=($(compgen -f -- "$cur"))', "COMPREPLY=()"),
        ('    matches+=("$completion")', '    matches+=(${completion:+"$completion"})'),
    ):
        script = script.replace(before, after)
    return script
