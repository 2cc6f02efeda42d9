"""Models are fit for compilers: one graph, any batch, the same result."""

import io

import pytest
import torch

from t2t.models.create import create_model

# One of each kind of part; Performer tokens, which take longest to trace, once.
KINDS = {
    "t2t_vit_7": {},
    "t2t_vit_t_14": {},
    "t2t_vit_16_ghost": {"tokenizer": "patch"},
    "t2t_vit_dense": {"tokenizer": "patch", "dense_stages": (1, 1), "num_heads": 4},
    "t2t_vit_14_depthwise": {"tokenizer": "patch"},
    "t2t_vit_14_conv_attention": {"tokenizer": "patch"},
    "t2t_vit_14_axial": {"tokenizer": "patch"},
    "t2t_pyramid_small": {
        "tokenizer": "patch",
        "patch_size": 4,
        "pyramid_stages": (1, 1),
        "pyramid_mixers": ("axial", "attention"),
        "class_token": True,
    },
    "t2t_vit_7_32": {"tokenizer": "patch", "image_size": 32},
    "vit_small_16_linformer": {},
    "deit_tiny_distilled": {"positions": "relative"},
}


def build(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    small = {"num_classes": 4, "image_size": 48, "dim": 64, "depth": 2, "num_heads": 2}
    return create_model(name, **small | KINDS[name]).eval()


@pytest.mark.parametrize("name", KINDS)
def test_one_graph_and_its_gradients(name: str) -> None:
    model = build(name)
    images = torch.randn(2, 3, *model.config.image_size)
    expected = model(images)
    expected.sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    actual = compiled(images)
    actual.sum().backward()
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(
        [parameter.grad for parameter in model.parameters()], gradients
    )


@pytest.mark.parametrize("name", KINDS)
def test_export_with_any_batch(name: str) -> None:
    model = build(name)
    size = model.config.image_size
    program = torch.export.export(
        model,
        (torch.randn(2, 3, *size),),
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )
    images = torch.randn(5, 3, *size)
    torch.testing.assert_close(program.module()(images), model(images))


def test_onnx_with_any_batch() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = build("t2t_vit_7")
    program = torch.onnx.export(
        model,
        (torch.randn(2, 3, 48, 48),),
        dynamo=True,
        optimize=True,
        verbose=False,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )
    assert program is not None
    buffer = io.BytesIO()
    program.save(buffer)
    session = onnxruntime.InferenceSession(buffer.getvalue())
    images = torch.randn(3, 3, 48, 48)
    (actual,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    torch.testing.assert_close(
        torch.from_numpy(actual), model(images), rtol=1e-4, atol=1e-5
    )
