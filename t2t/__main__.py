"""`t2t`, and `python -m t2t` for torchrun and machines without the script."""

import sys

from t2t.sigint import INTERRUPTED, exit_quietly_on_sigint, restore_sigint


def main() -> int:
    """Runs the command line; Ctrl-C exits without a traceback, even during imports."""
    try:
        from t2t.cli import main as run
        from t2t.training.start_cuda import leave

        restore_sigint()
        return leave(run())
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        exit_quietly_on_sigint()  # once more, while Python ends


if __name__ == "__main__":
    sys.exit(main())
