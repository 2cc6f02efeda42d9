"""The verbs of the command line: a signature is the options, a docstring the help.

Nothing heavy is imported before the words are understood.
"""

from collections.abc import Callable

from t2t.verbs.bench import bench
from t2t.verbs.models import models, show
from t2t.verbs.packing import pack
from t2t.verbs.planning import plan
from t2t.verbs.record import record
from t2t.verbs.running import recipes, train
from t2t.verbs.shipping import ship
from t2t.verbs.study import study
from t2t.verbs.using import eval, predict

VERBS: dict[str, Callable[..., None]] = {
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
