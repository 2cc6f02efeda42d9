"""The commands: a signature is the options, a docstring the help.

Nothing heavy is imported before the command line is parsed.
"""

from collections.abc import Callable

from t2t.commands import (
    bench,
    completion,
    eval,
    export,
    features,
    look,
    models,
    neighbors,
    pack,
    plan,
    predict,
    probe,
    push,
    recipes,
    record,
    serve,
    ship,
    show,
    study,
    train,
)
from t2t.commands.options import with_log_level

COMMANDS: dict[str, Callable[..., None]] = {
    "train": train.train,
    "eval": eval.eval,
    "predict": predict.predict,
    "serve": serve.serve,
    "export": export.export,
    "push": push.push,
    "look": look.look,
    "probe": probe.probe,
    "features": features.features,
    "neighbors": neighbors.neighbors,
    "recipes": recipes.recipes,
    "plan": plan.plan,
    "study": study.study,
    "record": record.record,
    "ship": ship.ship,
    "models": models.models,
    "show": show.show,
    "pack": pack.pack,
    "bench": bench.bench,
    "completion": completion.completion,
}
COMMANDS = {name: with_log_level(command) for name, command in COMMANDS.items()}

DISTRIBUTED = ("train", "eval")
"""Commands that torchrun may start as several processes."""
