"""A run's folder: what it holds, who may write into it, and what it says of itself."""

import fcntl
import json
import os
import platform
import shlex
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from os.path import samestat
from pathlib import Path
from typing import Any

import torch

import t2t
from t2t.atomic import write_atomically
from t2t.config import differences, few, from_json, to_json
from t2t.errors import UserError
from t2t.models.checkpoint_io.checkpoints import read_checkpoint
from t2t.training.distributed import World, any_over_all
from t2t.training.recipe import Recipe
from t2t.training.removal import remove, written
from t2t.user_code import FOLDER as CODE
from t2t.user_code import LOADED, changed_file, offer

RECIPE, ENVIRONMENT, METRICS = "recipe.json", "environment.json", "metrics.jsonl"
RESULT, CHECKPOINTS, CURVES = "result.json", "last", "curves.png"
MODEL, LOG, LOCK = "model.safetensors", "log.txt", ".lock"

STEP = "step-" + 9 * "[0-9]" + "*"
OF_CHECKPOINTS = tuple(
    f"{CHECKPOINTS}/{pattern}"
    for pattern in (STEP, f"damaged-{STEP}", ".writing-[0-9]*")
)
OF_FILES = (MODEL, METRICS, RESULT, CURVES, LOG, ENVIRONMENT, RECIPE)
PARTS = tuple(f".{name}.*.part" for name in OF_FILES)
"""Unfinished files of a killed process."""
OF_TRACKERS = (
    "tensorboard/events.out.tfevents.*",
    ".wandb-id",
    *(f"wandb/{name}" for name in ("run-*", "offline-run-*", "latest-run")),
    *(f"wandb/{name}" for name in ("debug*.log", "debug*.log.*")),
)
OF_CODE = f"{CODE}/*.py"
"""The user's own files that the run was started with."""
# The recipe is last: until then the folder is recognised as a run's.
WRITTEN = (*OF_CHECKPOINTS, *PARTS, *OF_TRACKERS, OF_CODE, *OF_FILES)
"""All that a run writes into its folder."""

RESULT_KINDS = {
    **dict.fromkeys(("recipe", "model", "metric", "command"), str),
    **dict.fromkeys(("parameters", "epochs", "skipped_steps"), int),
    "images_per_second": float,
    **dict.fromkeys(("train_minutes", "compile_minutes"), float),
}
"""What is read of a run's result; each is there, and of this kind."""
ENVIRONMENT_KINDS = dict.fromkeys(("device", "torch", "precision"), str)
"""The same of its environment."""
IN_WORDS = {str: "a text", int: "a whole number", float: "a number"}


@contextmanager
def leaving_none_empty(folder: Path) -> Iterator[None]:
    """Takes away again what is new of a folder and those above, if it stays empty."""
    # What cannot be looked at is refused when it is written.
    new = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    try:
        yield
    finally:
        for path in new:
            with suppress(OSError):
                path.rmdir()


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / METRICS
        self.checkpoints = path / CHECKPOINTS
        self.curves = path / CURVES
        self.model = path / MODEL
        self.log = path / LOG
        self.handle = -1
        self.token = ""
        """The content of the lock file while this process holds it."""
        self.pages: dict[str, dict[str, Any]] = {}
        """The JSON files written at the start, to restore a lost folder."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps others from training here; the system lets go even after kill -9."""
        with leaving_none_empty(self.path), self.locked():
            yield

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the folder, if need be, and locks it."""
        try:
            os.fsencode(self.path).decode()
        except UnicodeDecodeError:
            raise UserError(
                f"{self.path} is not UTF-8, and no model can be written there; name "
                "another --folder."
            ) from None
        self.lock()
        try:
            yield
        finally:
            with suppress(OSError):
                # A run that was refused leaves no files behind.
                if not (self.path / RECIPE).exists():
                    (self.path / LOCK).unlink()
            # Last: the removed lock file must not be another process's.
            os.close(self.handle)

    def lock(self) -> None:
        """Creates the folder if needed and locks it; releases an earlier lock."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be written ({error.strerror}); name another "
                "--folder."
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise UserError(
                f"Another process is training in {self.path}; wait for it, or name "
                "another --folder."
            ) from None
        except OSError:
            pass  # Some network storage has no locks: then nothing guards the folder.
        if self.handle >= 0:
            os.close(self.handle)
        self.handle = handle

    def sign(self) -> None:
        """Writes a new token into the lock file."""
        self.token = uuid.uuid4().hex
        try:
            os.truncate(self.handle, 0)
            os.pwrite(self.handle, self.token.encode(), 0)
        except OSError:  # a full disk: then only the recipe is compared
            self.token = ""

    def token_there(self) -> str:
        """The content of the lock file; empty if there is none."""
        try:
            return (self.path / LOCK).read_text(errors="replace")
        except OSError:
            return ""

    def is_lost(self) -> bool:
        """Whether the folder was removed, moved or replaced while training."""
        if not self.pages:
            return False  # the run has not started
        return not (self.path / RECIPE).exists() or self.token_there() != self.token

    def make_again(self) -> None:
        """Recreates a lost folder; raises an error if another run is there."""
        is_run = (self.path / RECIPE).exists()
        same = is_run and read_json(self.path / RECIPE) == self.pages[RECIPE]
        is_locked = self.token_there() not in ("", self.token)
        # A checkpoint that was being written may lie there already.
        ours = (self.log, self.checkpoints, *written(self.path, OF_CHECKPOINTS))
        found = (*visible(self.path), *visible(self.checkpoints))
        others = [path for path in found if path not in ours]
        is_locked_by_us = bool(self.token) and self.token_there() == self.token
        is_anothers = not same or is_locked if is_run else bool(others)
        if is_anothers and not is_locked_by_us:
            raise UserError(f"{self.path} holds something else by now.")
        lock = self.path / LOCK
        if not (lock.exists() and samestat(os.fstat(self.handle), lock.stat())):
            self.lock()
        self.sign()
        try:
            for name, page in self.pages.items():
                write_json(self.path / name, page)
            self.write_code()
        except OSError as error:
            raise self.unwritable(error) from error

    def restore_pages(self) -> list[Path]:
        """Writes JSON files again that were removed; returns them."""
        missing = {
            self.path / name: page
            for name, page in self.pages.items()
            if not os.path.lexists(self.path / name)
        }
        with suppress(OSError):  # a full disk: tried again at the next checkpoint
            for path, page in missing.items():
                write_json(path, page)
        return [path for path in missing if path.exists()]

    def check(self, recipe: Recipe, fresh: bool) -> None:
        """Refuses a folder that holds something else than this run."""
        is_run = (self.path / RECIPE).exists()
        if not is_run and written(self.path, OF_CHECKPOINTS):
            raise UserError(
                f"{self.path} holds checkpoints, but no {RECIPE} of their run; restore "
                "it, or name another --folder."
            )
        if not is_run and self.strangers():
            raise UserError(
                f"{self.path} holds files that are not a run's; name another --folder."
            )
        if fresh:
            self.check_spares(recipe)
        else:
            self.check_same(recipe, ", or add --fresh to start over in it")

    def check_same(self, recipe: Recipe, other_ways: str = "") -> None:
        """Refuses to go on with a run that has begun by another recipe."""
        if changed := self.changes(recipe):
            raise UserError(
                f"{self.path} holds a run of another recipe ({few(changed)}); name "
                f"another --folder{other_ways}."
            )

        if self.has_begun() and (name := changed_file(self.path)):
            raise UserError(
                f"{name} has changed since the run in {self.path} began, whose own is "
                f"{self.path / CODE / name}. Restore it, resume with `t2t train "
                f"{self.path}`, or name another --folder{other_ways}."
            )

    def changes(self, recipe: Recipe) -> list[str]:
        """How a recipe differs from that of the run here, if one has begun."""
        if not ((self.path / RECIPE).exists() and self.has_begun()):
            return []
        try:
            before = read_json(self.path / RECIPE)
        except UserError as error:
            raise UserError(
                f"{error} Restore it, name another --folder, or add --fresh to start "
                "over."
            ) from error
        if same_data(str(before.get("data")), recipe.data):
            before["data"] = recipe.data
        return differences(before, to_json(recipe))

    def check_spares(self, recipe: Recipe) -> None:
        """Refuses to delete what the run is to begin with."""
        own = [path.resolve() for path in written(self.path, WRITTEN)]
        named = {"weights": recipe.weights, "data": recipe.data, **recipe.task_args}
        for name, value in named.items():
            if not isinstance(value, str):
                continue
            path = Path(os.path.expanduser(value))
            needed = path.resolve()
            inside = needed.is_relative_to(self.path.resolve())
            deleted = any(
                needed.is_relative_to(each) or each.is_relative_to(needed)
                for each in own
            )
            if inside and deleted and path.exists():
                raise UserError(
                    f"--fresh would delete {path}, the {name} of this run; name "
                    "another --folder."
                )

    def begin(
        self, recipe: Recipe, runtime: dict[str, Any], world: World, fresh: bool
    ) -> None:
        """Makes the folder this run's; what an earlier one left goes if `fresh`."""
        try:
            if fresh:
                self.clear()
            self.sign()
            pages = {
                RECIPE: to_json(recipe),
                ENVIRONMENT: environment(runtime, world),
            }
            for name, page in pages.items():
                write_json(self.path / name, page)
            self.pages = pages
            self.write_code()
        except OSError as error:
            raise self.unwritable(error) from error

    def write_code(self) -> None:
        """Keeps the user's own files as they were run."""
        # Of two files of one name, the first is the one that was named.
        for each in reversed(LOADED):
            (self.path / CODE).mkdir(exist_ok=True)
            write_atomically(self.path / CODE / each.path.name, each.text)

    def check_seen(self, world: World) -> None:
        """Refuses a folder that some do not see, who could keep no shards in it."""
        (is_unseen,) = any_over_all((not (self.path / RECIPE).exists(),), world)
        if is_unseen:
            raise UserError(
                f"Not all machines see {self.path}, so shards of a model cannot be "
                "kept there; put it where all see it, or use --parallelism ddp."
            )

    def unwritable(self, error: OSError) -> UserError:
        """What to say where the folder takes no more."""
        return UserError(
            f"{self.path} cannot be written ({error.strerror}); make room, or name "
            "another --folder."
        )

    def has_begun(self) -> bool:
        """Whether anything came of the run; nothing does of one refused at once."""
        numbers = self.metrics.exists() and self.metrics.stat().st_size > 0
        return numbers or self.checkpoints.exists() or (self.path / RESULT).exists()

    def strangers(self) -> list[Path]:
        """Files in the folder except the log and empty checkpoints of a lost run."""
        found = visible(self.path)
        leftover = [self.log]
        if not visible(self.checkpoints):
            leftover.append(self.checkpoints)
        return [path for path in found if path not in leftover]

    def clear(self) -> None:
        """Removes the files of an earlier run and no others."""
        remove(self.path, WRITTEN)

    def sweep(self) -> None:
        """Removes unfinished files of a killed process."""
        with suppress(OSError):
            remove(self.path, PARTS)

    def finished(self) -> dict[str, Any] | None:
        """What the run came to, once it has."""
        path = self.path / RESULT
        if not path.exists():
            return None
        metric = read_json(path, RESULT_KINDS)["metric"]
        return read_json(path, {**RESULT_KINDS, metric: float, f"{metric}_raw": float})

    def check_model(self) -> None:
        """Raises an error if the model of a finished run is missing or damaged."""
        try:
            read_checkpoint(self.model)
        except UserError as error:
            why = str(error) if self.model.exists() else f"There is no {self.model}."
            raise UserError(
                f"{self.path} has finished training, but its model is lost. {why} "
                "Restore it, or add --fresh to train again."
            ) from error

    def finish(self, result: dict[str, Any]) -> None:
        """Writes down what the run came to; its checkpoints are then of no more use."""
        write_json(self.path / RESULT, result)
        with suppress(OSError):
            remove(self.path, OF_CHECKPOINTS)


def visible(folder: Path) -> list[Path]:
    """Files in a folder that are not hidden; empty if there is no folder."""
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []


def same_data(given: str, own: str) -> bool:
    """Whether two names of data mean the same."""
    places = [os.path.realpath(os.path.expanduser(each)) for each in (given, own)]
    return given == own or (places[0] == places[1] and os.path.exists(places[0]))


def read_recipe(folder: Path) -> Recipe:
    """The recipe that a run folder was trained by."""
    check_run(folder)
    return read_recipe_file(folder / RECIPE)


def read_recipe_file(path: Path) -> Recipe:
    """A recipe from a file of JSON."""
    described = read_json(path)
    offer(path.parent)
    try:
        return from_json(Recipe, described)
    except UserError as error:
        raise UserError(f"{path} is no recipe. {error}") from error


def read_environment(folder: Path) -> dict[str, Any]:
    """The machine and the versions that a run was trained by."""
    return read_json(folder / ENVIRONMENT, ENVIRONMENT_KINDS)


def check_run(folder: Path) -> None:
    """Refuses what is no run folder."""
    if not (folder / RECIPE).exists():
        raise UserError(f"{folder} is not a run folder: it holds no {RECIPE}.")


def read_result(folder: Path) -> dict[str, Any]:
    """What a run came to; refuses what is no run, or not at its end."""
    check_run(folder)
    result = RunFolder(folder).finished()
    if result is None:
        raise UserError(
            f"{folder} is not trained to its end; `t2t train` with the same command "
            "goes on."
        )
    return result


def environment(runtime: dict[str, Any], world: World) -> dict[str, Any]:
    """The machine and the versions, for whoever asks how a number came about."""
    device = world.device.type
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor()
    return {
        "command": command_line(),
        "t2t": t2t.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": f"{device} {name}".strip(),
        "num_processes": world.size,
        **runtime,
    }


def command_line() -> str:
    """What was typed, to be typed again."""
    return shlex.join(["t2t", *sys.argv[1:]])


def read_json(path: Path, kinds: Mapping[str, type] | None = None) -> dict[str, Any]:
    """A JSON object from a file, in which these keys have values of these kinds."""
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    if not isinstance(data, dict):
        kind = type(data).__name__
        raise UserError(f"{path} should hold a JSON object, and holds a {kind}.")
    for key, wanted in (kinds or {}).items():
        if not is_of_kind(data.get(key), wanted):
            found = json.dumps(data[key])[:40] if key in data else "missing"
            raise UserError(
                f"{path} is not as it was written: its {key!r} should be "
                f"{IN_WORDS[wanted]} and is {found}; put that right, or remove "
                f"{path.parent} and begin anew."
            )
    return data


def is_of_kind(value: object, kind: type) -> bool:
    """Whether JSON has given a value of this kind; a number may be a whole one."""
    is_whole = kind is float and type(value) is int
    return type(value) is kind or is_whole


def write_page(path: Path, text: str) -> None:
    """Text into a file, whole or not at all; a name in other bytes is escaped."""
    write_atomically(path, text.encode(errors="backslashreplace"))


def write_json(path: Path, data: dict[str, Any]) -> None:
    """A JSON object into a file, whole or not at all."""
    write_atomically(path, (json.dumps(data, indent=1) + "\n").encode())
