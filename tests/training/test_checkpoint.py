"""A run that is interrupted ends in the same bits as one that is not."""

import functools
import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors import safe_open

from t2t.data.sampler import Batch
from t2t.errors import LocalError, UserError
from t2t.models.weights import save
from t2t.training import trainer
from t2t.training.checkpoint import load_checkpoint
from t2t.training.checkpoint_files import checkpoints
from t2t.training.checkpoint_writer import CheckpointWriter
from t2t.training.distributed import World
from t2t.training.initial_state import build_model, new_state
from t2t.training.logging.metrics import read_rows
from t2t.training.recipe import OptimizerConfig, Recipe
from t2t.training.runtime import Runtime, resolve_runtime
from t2t.training.state import Snapshot, TrainState
from t2t.training.step import Stepper
from t2t.training.step_result import PendingStep
from t2t.training.train import train

Tiny = Callable[..., Recipe]
ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[TrainState]:
    """The runs that calls of `train` make, in order."""
    made: list[TrainState] = []

    def remember(*arguments: object) -> TrainState:
        made.append(new_state(*arguments))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(trainer, "new_state", remember)
    return made


def assert_same(ours: Snapshot, theirs: Snapshot) -> None:
    assert ours.numbers == theirs.numbers
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, tensor in ours.tensors.items():
        assert torch.equal(tensor, theirs.tensors[name]), name


@pytest.mark.parametrize(
    ("optimizer", "began_at"), [("adamw", 8), ("muon", 8), ("sgd", 8), ("adamw", 16)]
)
def test_interrupted_run_ends_in_the_same_bits(
    optimizer: str,
    began_at: int,
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    runs: list[TrainState],
    interrupt_after: Callable[[int | None], None],
) -> None:
    weights = tmp_path / "weights.safetensors"
    recipe = tiny(random=True, weights=str(weights))
    recipe = replace(recipe, optimizer=replace(recipe.optimizer, name=optimizer))
    # Positions of another image size are interpolated, and then a part of the weights.
    recipe = replace(recipe, model_args={**recipe.model_args, "positions": "sinusoid"})
    save(build_model(replace(recipe, image_size=(began_at,) * 2), 3), weights)
    interrupt_after(None)
    whole = train(recipe, folder=tmp_path / "whole", runtime=cpu, quiet=True)
    interrupt_after(5)
    first = train(recipe, folder=tmp_path / "parts", runtime=cpu, quiet=True)
    assert (whole.finished, first.finished) == (True, False)
    assert first.summary["steps"] == 5
    interrupt_after(None)
    weights.unlink()  # the checkpoint is all that is needed from now on
    second = train(recipe, folder=tmp_path / "parts", runtime=cpu, quiet=True)
    assert second.finished
    uninterrupted, _, resumed = runs
    assert resumed.step == 12
    assert_same(uninterrupted.snapshot(), resumed.snapshot())
    with (
        safe_open(tmp_path / "whole/model.safetensors", "pt") as ours,
        safe_open(tmp_path / "parts/model.safetensors", "pt") as theirs,
    ):
        assert ours.metadata() == theirs.metadata()
        assert ours.keys() == theirs.keys()
        for name in ours.keys():  # noqa: SIM118
            assert torch.equal(ours.get_tensor(name), theirs.get_tensor(name))
    for key in ("top1", "top5", "top1_raw", "val_loss", "skipped_steps"):
        assert whole.summary[key] == second.summary[key]


def test_a_checkpoint_is_saved_if_the_data_cannot_be_read_any_more(
    tiny: Tiny, cpu: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Stepper.load

    def broken(stepper: Stepper, batches: Iterator[Batch]) -> Iterator[Batch]:
        yield from itertools.islice(load(stepper, batches), 5)
        raise LocalError("x.tar could not be read for 10 minutes.")

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "load", broken)
        with pytest.raises(LocalError, match="10 minutes"):
            train(tiny(random=True), folder=tmp_path, runtime=cpu, quiet=True)
    assert checkpoints(tmp_path / "last")[0].name == "step-000000005"
    resumed = train(tiny(random=True), folder=tmp_path, runtime=cpu, quiet=True)
    whole = train(tiny(random=True), folder=tmp_path / "b", runtime=cpu, quiet=True)
    assert resumed.summary["val_loss"] == whole.summary["val_loss"]


@pytest.mark.parametrize("body_lr", [1e-3, 0.0])
def test_fine_tuning_needs_weights_to_begin_with(
    body_lr: float,
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    interrupt_after: Callable[[int | None], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights, folder = tmp_path / "weights.safetensors", tmp_path / "run"
    recipe = tiny()
    save(build_model(recipe, 3), weights)
    recipe = replace(recipe, optimizer=replace(recipe.optimizer, body_lr=body_lr))
    given = {"runtime": cpu, "quiet": True}
    with pytest.raises(UserError, match="tiny fine-tunes trained weights"):
        train(recipe, folder=folder, **given)
    assert not folder.exists()
    tuned = replace(recipe, weights=str(weights))
    assert train(tuned, folder=tmp_path / "tuned", **given).finished
    with monkeypatch.context() as earlier:  # what began before it was refused goes on
        earlier.setattr(Recipe, "check_weights", lambda recipe: None)
        interrupt_after(5)
        train(recipe, folder=folder, **given)
    interrupt_after(None)
    with pytest.raises(UserError, match="tiny fine-tunes trained weights"):
        train(recipe, folder=folder, fresh=True, **given)
    assert train(recipe, folder=folder, **given).finished


def test_memories_match_their_parameters(tiny: Tiny, cpu: Runtime) -> None:
    # Fused optimizers walk through both at once, and do not look at strides.
    recipe = replace(tiny(), model="resnet18_32", model_args={})
    run = new_state(recipe, resolve_runtime(cpu, ALONE), ALONE, 3)
    for name, parameter in run.task.named_parameters():
        key = f"optimizer/0/{name}/exp_avg"
        memory = run.empty_like(key, parameter.shape, parameter.dtype)
        assert memory.stride() == parameter.stride()


def test_no_time_of_training_is_lost(
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    interrupt_after: Callable[[int | None], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start_step = Stepper.start_step

    def slowly(stepper: Stepper, batch: Batch, *given: Any) -> PendingStep:
        time.sleep(0.05)
        return start_step(stepper, batch, *given)

    monkeypatch.setattr(Stepper, "start_step", slowly)
    for stop in (5, 4, None):
        interrupt_after(stop)
        result = train(tiny(), folder=tmp_path, runtime=cpu, quiet=True)
        assert 60 * result.summary["train_minutes"] > 0.04 * result.summary["steps"]
    rows = read_rows(tmp_path / "metrics.jsonl")
    places = [(row["step"], "top1" in row) for row in rows]
    assert places == sorted(set(places))


def test_fp16_resumes_with_its_scale(
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    runs: list[TrainState],
    interrupt_after: Callable[[int | None], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = replace(cpu, precision="fp16")
    # The scale starts where half precision overflows, so the first steps are left out
    # and the interruption comes before the optimizer has anything to remember.
    first_scale = 2.0**26
    scaler = functools.partial(torch.amp.GradScaler, init_scale=first_scale)
    monkeypatch.setattr(torch.amp, "GradScaler", scaler)
    recipe = tiny(random=True)
    interrupt_after(None)
    train(recipe, folder=tmp_path / "whole", runtime=runtime, quiet=True)
    interrupt_after(1)
    train(recipe, folder=tmp_path / "parts", runtime=runtime, quiet=True)
    interrupt_after(None)
    train(recipe, folder=tmp_path / "parts", runtime=runtime, quiet=True)
    whole, first, resumed = runs
    assert whole.num_skipped >= 1
    assert first.num_skipped == 1
    assert first.optimizer_state() == {}
    assert whole.scaler.get_scale() < first_scale
    assert whole.num_skipped < 12
    assert_same(whole.snapshot(), resumed.snapshot())


@pytest.fixture
def stopped(
    tiny: Tiny,
    cpu: Runtime,
    images: Path,
    tmp_path: Path,
    interrupt_after: Callable[[int | None], None],
) -> Recipe:
    """A recipe whose run in "run" was stopped after 11 steps, with its own data."""
    shutil.copytree(images, tmp_path / "data")
    recipe = tiny(data=str(tmp_path / "data"))
    interrupt_after(11)
    train(recipe, folder=tmp_path / "run", runtime=cpu, quiet=True)
    interrupt_after(None)
    return recipe


def test_a_run_does_not_resume_with_other_classes(
    stopped: Recipe, cpu: Runtime, tmp_path: Path
) -> None:
    for split in ("train", "val"):  # after which labels mean something else
        (tmp_path / "data" / split / "a").rename(tmp_path / "data" / split / "z")
    with pytest.raises(UserError, match="'a' is missing, 'z' is new") as caught:
        train(stopped, folder=tmp_path / "run", runtime=cpu, quiet=True)
    assert "add --fresh" in str(caught.value)
    assert len(checkpoints(tmp_path / "run" / "last")) == 2


def test_as_many_images_under_other_names_are_reported(
    stopped: Recipe, cpu: Runtime, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = min((tmp_path / "data/train/a").iterdir())
    first.rename(tmp_path / "data/train/b" / first.name.replace(".", "b."))
    train(stopped, folder=tmp_path / "run", runtime=cpu)
    assert "images have changed (48 before, 48 now)" in capsys.readouterr().out


def test_a_run_with_fewer_images_left_is_evaluated_as_it_is(
    stopped: Recipe, cpu: Runtime, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "abc":  # which leaves fewer steps than were done
        for path in sorted((tmp_path / "data/train" / name).iterdir())[:7]:
            path.unlink()
    result = train(stopped, folder=tmp_path / "run", runtime=cpu)
    assert "images have changed (48 before, 27 now)" in capsys.readouterr().out
    assert result.finished
    scored = [r for r in read_rows(tmp_path / "run/metrics.jsonl") if "top1" in r]
    assert [row["step"] for row in scored] == [6, 11]
    assert result.summary["val_loss"] == scored[-1]["val_loss"]


@pytest.mark.parametrize("precisions", [("fp32", "fp16"), ("fp16", "fp32")])
def test_a_run_resumes_in_another_precision(
    precisions: tuple[Literal["fp32", "fp16"], ...],
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    interrupt_after: Callable[[int | None], None],
) -> None:
    for precision, stop in zip(precisions, (2, None), strict=True):
        interrupt_after(stop)
        runtime = replace(cpu, precision=precision)
        result = train(tiny(epochs=1), folder=tmp_path, runtime=runtime, quiet=True)
        assert result.finished == (stop is None)


@pytest.mark.parametrize(
    "name", ["adamw", "muon", "sgd", "lamb", "adafactor", "adafactorbv", "adan"]
)
def test_checkpoint_gives_back_all_that_an_optimizer_remembers(
    name: str, tiny: Tiny, cpu: Runtime, tmp_path: Path
) -> None:
    recipe = tiny(optimizer=OptimizerConfig(name=name, lr=1e-2))
    runtime = resolve_runtime(cpu, ALONE)
    run = new_state(recipe, runtime, ALONE, 3)
    for step in range(2):
        loss = run.model(torch.randn(4, 3, 8, 8)).square().sum()
        loss.backward()
        for optimizer in run.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        run.step = step + 1
    writer = CheckpointWriter(tmp_path, ALONE, pytest.fail)
    writer.save(run.snapshot())
    writer.finish()
    other = new_state(replace(recipe, seed=1), runtime, ALONE, 3)
    load_checkpoint(checkpoints(tmp_path)[0], other, ALONE)
    assert_same(run.snapshot(), other.snapshot())
    assert all("peak" in group for o in other.optimizers for group in o.param_groups)
    assert all(
        torch.equal(a, b)
        for a, b in zip(run.task.parameters(), other.task.parameters(), strict=True)
    )


@pytest.mark.parametrize("name", ["adamw", "muon", "sgd"])
def test_a_run_resumed_on_another_device_keeps_to_its_kernels(
    name: str, tiny: Tiny, cpu: Runtime
) -> None:
    recipe = tiny(optimizer=OptimizerConfig(name=name))
    first, second = (
        new_state(recipe, resolve_runtime(cpu, ALONE), ALONE, 3) for _ in range(2)
    )
    groups = [group for each in second.optimizers for group in each.param_groups]
    for group in groups:
        group["fused"] = group["capturable"] = True  # as on a GPU
    for group in first.optimizers[0].param_groups:
        group["lr"] = 0.125
    second.restore(first.snapshot())
    groups = [group for each in second.optimizers for group in each.param_groups]
    assert all(group["fused"] and group["capturable"] for group in groups)
    assert second.optimizers[0].param_groups[0]["lr"] == 0.125


def test_saving_changes_nothing(tiny: Tiny, cpu: Runtime) -> None:
    run = new_state(tiny(), resolve_runtime(cpu, ALONE), ALONE, 3)
    before = {key: value.clone() for key, value in run.snapshot().tensors.items()}
    assert run.snapshot().tensors.keys() == before.keys()
    assert run.optimizer_state() == {}


@pytest.mark.parametrize(("pays", "steps"), [(0.0, [6]), (1e9, [])])
def test_an_evaluation_writes_a_checkpoint_if_that_takes_little_time(
    pays: float,
    steps: list[int],
    tiny: Tiny,
    cpu: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[int] = []
    save = CheckpointWriter.save

    def noted(writer: CheckpointWriter, snapshot: Snapshot) -> None:
        written.append(snapshot.numbers["step"])
        save(writer, snapshot)

    monkeypatch.setattr(CheckpointWriter, "save", noted)
    init = CheckpointWriter.__init__

    def slow(writer: CheckpointWriter, *given: Any) -> None:
        init(writer, *given)
        writer.seconds = 1.0

    monkeypatch.setattr(CheckpointWriter, "__init__", slow)
    monkeypatch.setattr(trainer, "SAVING_PAYS", pays)
    train(tiny(), folder=tmp_path, runtime=cpu, quiet=True)
    assert written == steps
