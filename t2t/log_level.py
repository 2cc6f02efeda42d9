"""What is printed beside results: the level of the logger `t2t`.

    logging.getLogger("t2t").setLevel("WARNING")

lets runs print warnings only, as `--log-level warning` does. `log.txt` has everything.
"""

import logging
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from t2t.errors import UserError

LogLevel = Literal["debug", "info", "warning", "error"]

logger = logging.getLogger("t2t")


def prints_info() -> bool:
    """Whether a run prints its progress."""
    return (logger.level or logging.INFO) <= logging.INFO


def prints_warnings() -> bool:
    """Whether warnings are printed."""
    return logger.level <= logging.WARNING


@contextmanager
def log_level(name: LogLevel) -> Iterator[None]:
    """Prints messages of this level and above, also those of libraries."""
    if name == "info":  # as Python and the libraries have it
        yield
        return
    root, handler = logging.getLogger(), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    before = logger.level, root.level, logging.root.manager.disable
    logger.setLevel(name.upper())
    with warnings.catch_warnings():
        if name == "debug":
            root.addHandler(handler)
            root.setLevel(logging.INFO)
            warnings.simplefilter("default")
        elif name == "error":
            logging.disable(logging.WARNING)
            warnings.simplefilter("ignore")
        try:
            yield
        except UserError:
            if name == "debug":
                traceback.print_exc()
            raise
        finally:
            root.removeHandler(handler)
            logger.setLevel(before[0])
            root.setLevel(before[1])
            logging.disable(before[2])
