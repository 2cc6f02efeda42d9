"""Tasks without labels, and one whose evaluations are best in the middle of a run."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2t.data.augment.config import Augmentation
from t2t.data.augment.pipeline import augment_images
from t2t.data.crops import CenterCrop, RandomCrop
from t2t.data.rng import CounterRng
from t2t.shapes import Images, Labels, Pixels
from t2t.tasks import Metric, Task, TaskContext, register_task
from t2t.tasks.base import VAL_LOSS, Crops, Numbers, Views, update_moving_average
from t2t.tasks.classify import Classify


@register_task("test_peak")
class Peak(Classify):
    """Reports a top-1 that is highest at two fifths of the training."""

    def summarize(self, values: Views) -> dict[str, float]:
        top1 = 100 * (1 - abs(self.progress.item() - 0.4))
        return {**super().summarize(values), "top1": top1}


@dataclass(frozen=True, kw_only=True)
class TwoViewArgs:
    momentum: float = 0.9
    dim: int = 8


@register_task("test_two_views")
class TwoViews(Task):
    """A projector and a predictor of one view meet a moving-average teacher's other."""

    Args = TwoViewArgs
    needs_labels = False
    metrics = (Metric("agreement", "agreement", digits=3), VAL_LOSS)

    def __init__(self, model: nn.Module, context: TaskContext, args: Any) -> None:
        super().__init__(model, context, args)
        width = model.num_features
        assert isinstance(width, int)
        self.projector = nn.Sequential(
            nn.Linear(width, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, args.dim)
        )
        self.predictor = nn.Linear(args.dim, args.dim)
        self.teacher = nn.ModuleDict(
            {
                "model": copy.deepcopy(model),
                "projector": copy.deepcopy(self.projector),
            }
        ).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(args.dim))

    def crops(self, crop: RandomCrop | CenterCrop) -> Crops:
        return (crop, crop)

    def views(
        self,
        pixels: tuple[Pixels, ...],
        labels: Labels,
        rng: CounterRng,
        augmentation: Augmentation,
    ) -> Views:
        return {
            name: augment_images(some, rng.for_view(number), augmentation)
            for number, (name, some) in enumerate(
                zip(("first", "second"), pixels, strict=True)
            )
        }

    def forward(self, views: Views) -> Numbers:
        first, second = views["first"], views["second"]
        with torch.no_grad():
            taught = self.teacher["projector"](self.teacher["model"](second))
        predicted = self.predictor(self.projector(self.model(first)))
        likeness = F.cosine_similarity(predicted.float(), taught.float() - self.centre)
        loss = (1 + self.progress) * (1 - likeness).mean()
        return {"loss": loss, "likeness": likeness.detach().mean()}

    @torch.no_grad()
    def after_step(self, applied: Tensor) -> None:
        momentum = self.args.momentum
        update_moving_average(self.teacher["model"], self.model, momentum, applied)
        update_moving_average(
            self.teacher["projector"], self.projector, momentum, applied
        )
        self.centre.add_(0.01 * applied * self.progress)

    def score(self, model: nn.Module, images: Images, labels: Labels) -> Views:
        seen = self.projector(model(images))
        taught = self.teacher["projector"](self.teacher["model"](images))
        likeness = F.cosine_similarity(seen.float(), taught.float())
        return {"agreement": likeness, "val_loss": 1 - likeness}


@register_task("test_masked")
class Masked(Task):
    """A decoder reconstructs the mean colours of tokens that are hidden."""

    needs_labels = False

    def __init__(self, model: nn.Module, context: TaskContext, args: Any) -> None:
        super().__init__(model, context, args)
        self.num_tokens = model.tokenizer.grids(context.image_size)[-1]  # type: ignore[union-attr, operator]
        width = model.num_features
        assert isinstance(width, int)
        self.mask_token = nn.Embedding(1, width)
        self.decoder = nn.Linear(width, 3)

    def views(
        self,
        pixels: tuple[Pixels, ...],
        labels: Labels,
        rng: CounterRng,
        augmentation: Augmentation,
    ) -> Views:
        rows, columns = self.num_tokens
        hidden = rng.uniform("mask", rows * columns) < 0.5
        images = augment_images(pixels[0], rng, augmentation)
        return {"images": images, "mask": hidden}

    def reconstruction(self, model: Any, images: Images, mask: Tensor) -> Tensor:
        tokens, grid = model.tokenize(images)
        hidden = self.mask_token.weight.to(tokens.dtype)
        tokens = torch.where(mask[:, :, None], hidden, tokens)
        decoded = self.decoder(model.encoder(tokens, grid, model.norm))
        wanted = F.adaptive_avg_pool2d(images, grid).flatten(2).transpose(1, 2)
        errors = (decoded.float() - wanted).square().mean(2)
        return (errors * mask).sum(1) / mask.sum(1).clamp(min=1)

    def forward(self, views: Views) -> Numbers:
        errors = self.reconstruction(self.model, views["images"], views["mask"])
        return {"loss": errors.mean()}

    def score(self, model: nn.Module, images: Images, labels: Labels) -> Views:
        rows, columns = self.num_tokens
        hidden = torch.arange(rows * columns, device=images.device) % 2 == 0
        mask = hidden.expand(len(images), -1)
        return {"val_loss": self.reconstruction(model, images, mask)}
