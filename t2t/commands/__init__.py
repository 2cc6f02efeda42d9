"""The verbs of the command line: a signature is the options, a docstring the help.

Nothing heavy is imported before the words are understood.
"""

from collections.abc import Callable

from t2t.commands.bench import bench
from t2t.commands.models import models, show
from t2t.commands.packing import pack
from t2t.commands.planning import plan
from t2t.commands.record import record
from t2t.commands.running import recipes, train
from t2t.commands.shipping import ship
from t2t.commands.study import study
from t2t.commands.using import eval, predict

COMMANDS: dict[str, Callable[..., None]] = {
    "train": train,
    "eval": eval,
    "predict": predict,
    "recipes": recipes,
    "plan": plan,
    "study": study,
    "record": record,
    "ship": ship,
    "models": models,
    "show": show,
    "pack": pack,
    "bench": bench,
}

SHARED = ("train", "eval")
"""Verbs that the processes of torchrun share the work of."""
