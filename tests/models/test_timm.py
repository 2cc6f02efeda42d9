"""Our models as timm's users meet them."""

import copy
import subprocess
import sys

import pytest
import timm
import timm.data
import timm.models
import timm.optim
import torch

import t2t
from t2t.errors import UserError
from t2t.models.create import create_model
from t2t.models.timm_entry import entry_point
from t2t.models.zoo import OURS, ZOO

SMALL = {"img_size": 32, "num_classes": 5, "depth": 3, "dim": 32}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def model():
    return timm.create_model("t2t_vit_7", **SMALL).eval()


@pytest.fixture
def images():
    return torch.randn(2, 3, 32, 32)


@pytest.mark.parametrize(
    "imports",
    [
        "import timm, t2t",
        # A look without an import, as other libraries take, must not use the hook up.
        "import t2t, importlib.util; importlib.util.find_spec('timm'); import timm",
    ],
)
def test_both_orders_of_import_register(imports):
    program = f"""{imports}
import inspect, sys
assert timm.list_models("t2t*") and timm.is_model("vit_base_16")
assert not any("t2t" in type(finder).__module__ for finder in sys.meta_path)
assert inspect.getsource(timm) and "exec_module" not in vars(timm.__loader__)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_importing_t2t_imports_no_torch():
    program = """import sys, t2t
assert t2t.list_models("t2t_vit_t_*") == [f"t2t_vit_t_{n}" for n in (14, 19, 24)]
assert set(t2t.__all__) <= set(dir(t2t))
assert not {"torch", "timm", "numpy"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_names_are_there_when_asked_for():
    names: dict[str, object] = {}
    exec("from t2t import *", names)
    assert set(t2t.__all__) <= names.keys()
    assert names["create_model"] is create_model
    with pytest.raises(AttributeError, match="create_modle"):
        _ = t2t.create_modle


def test_every_model_of_ours_is_listed_and_none_of_timms_is_replaced():
    assert OURS.keys() <= set(timm.list_models())
    for name in ("resnet50", "deit_tiny_patch16_224"):
        assert timm.models.model_entrypoint(name).__module__.startswith("timm.")
    for name in OURS:
        assert timm.models.model_entrypoint(name).__module__ == "t2t.models.timm_entry"


def test_options_by_timms_names():
    model = timm.create_model(
        "t2t_vit_7",
        num_classes=3,
        img_size=(32, 48),
        in_chans=1,
        drop_path_rate=0.2,
        global_pool="avg",
        depth=2,
    )
    assert (
        model.config
        == t2t.create_model(
            "t2t_vit_7",
            num_classes=3,
            image_size=(32, 48),
            in_channels=1,
            drop_path=0.2,
            pool="mean",
            depth=2,
        ).config
    )
    with pytest.raises(UserError, match="no option 'drop_pth_rate'"):
        timm.create_model("t2t_vit_7", drop_pth_rate=0.1)


def test_drop_rate_drops_before_the_head_while_training(images):
    model = timm.create_model("t2t_vit_7", drop_rate=0.5, token_dropout=0.0, **SMALL)
    assert not torch.equal(model(images), model(images))
    model.reset_classifier(7)
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))
    assert (
        model.state_dict().keys()
        == timm.create_model("t2t_vit_7", **SMALL).state_dict().keys()
    )


def test_pretrained_says_how_to_load_a_file():
    with pytest.raises(
        UserError, match=r"no hosted weights of t2t_vit_7 .*checkpoint_path"
    ):
        timm.create_model("t2t_vit_7", pretrained=True)


def as_published(state):
    """Our tensors under published names: steps from 1, tokens apart."""
    published = {}
    for name, tensor in state.items():
        name = name.replace("encoder.blocks.", "blocks.").replace(".mixer.", ".attn.")
        name = name.replace("tokenizer.steps.0", "tokens_to_token.attention1")
        name = name.replace("tokenizer.steps.1", "tokens_to_token.attention2")
        name = name.replace("tokenizer.", "tokens_to_token.")
        name = name.replace(".features", ".w").replace("prefix", "cls_token")
        name = name.replace(".mlp.expand.0.", ".mlp.fc1.")
        name = name.replace(".mlp.reduce.", ".mlp.fc2.")
        published[name] = tensor
    return published


@pytest.mark.parametrize("way", ["checkpoint_path", "overlay"])
def test_published_files_load_through_timm(way, model, images, tmp_path):
    published = as_published(model.state_dict())
    assert "tokens_to_token.attention1.w" in published
    published["pos_embed"] = model.encoder.positions.tables[0].table[None]
    torch.save({"state_dict": published}, tmp_path / "a.pth.tar")
    if way == "checkpoint_path":
        source = {"checkpoint_path": tmp_path / "a.pth.tar"}
    else:
        overlay = {"file": str(tmp_path / "a.pth.tar"), "num_classes": 5}
        source = {"pretrained": True, "pretrained_cfg_overlay": overlay}
    again = timm.create_model("t2t_vit_7", **SMALL, **source).eval()
    assert again.config.positions == "sinusoid"
    assert torch.equal(again(images), model(images))


def test_checkpoints_of_another_size_adapt_through_timm(model, tmp_path):
    published = as_published(model.state_dict())
    published["pos_embed"] = torch.randn(1, 1 + 4 * 4, 32)
    torch.save({"state_dict": published}, tmp_path / "a.pth.tar")
    again = timm.create_model(
        "t2t_vit_7", checkpoint_path=tmp_path / "a.pth.tar", **SMALL
    )
    assert again.config.positions == "fixed"
    table = again.encoder.positions.tables[0].table
    assert torch.equal(table[0], published["pos_embed"][0, 0])
    with pytest.raises(RuntimeError, match=r"size mismatch for head\.weight"):
        timm.create_model(
            "t2t_vit_7",
            checkpoint_path=tmp_path / "a.pth.tar",
            **(SMALL | {"num_classes": 6}),
        )


def test_a_copy_of_a_model_loads_by_itself(model, images):
    """timm's averaged models are deep copies, which are loaded like any other."""
    copied = copy.deepcopy(model)
    before = model(images)
    published = as_published(model.state_dict())
    published["pos_embed"] = torch.randn(1, 5, 32)
    copied.load_state_dict(published)
    assert (model.config.positions, copied.config.positions) == ("sinusoid", "fixed")
    assert torch.equal(model(images), before)
    assert not torch.allclose(copied(images), before)


@pytest.mark.parametrize("norm", [True, False])
def test_intermediates_are_those_of_timm(norm, model, images):
    """The same call on a ViT of timm's gives the same structure and shapes."""
    theirs = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, depth=3, embed_dim=32, num_heads=4
    ).eval()

    def shapes(result):
        if isinstance(result, torch.Tensor):
            return tuple(result.shape)
        if isinstance(result, dict):
            return {key: shapes(value) for key, value in result.items()}
        return [shapes(item) for item in result]

    for options in (
        {},
        {"indices": 2},
        {"indices": [0, -1], "return_prefix_tokens": True},
        {"indices": [1], "stop_early": True, "intermediates_only": True},
        {"output_fmt": "NLC", "intermediates_only": True},
        {"output_dict": True, "return_prefix_tokens": True},
    ):
        ours = model.forward_intermediates(images, norm=norm, **options)
        expected = theirs.forward_intermediates(images, norm=norm, **options)
        assert shapes(ours) == shapes(expected), options
    final, maps = model.forward_intermediates(images, norm=norm)
    assert torch.equal(final, model.forward_features(images))
    if norm:
        last = final[:, 1:].transpose(1, 2).unflatten(2, (2, 2))
        assert torch.equal(maps[-1], last)


@pytest.mark.parametrize("indices", [0, -1, 4, [3], [-4], []])
def test_layers_that_are_not_there_are_refused(indices, model, images):
    with pytest.raises(UserError, match="asked for, and the model has 3"):
        model.forward_intermediates(images, indices=indices)


def test_features_only_gives_maps_and_prunes(images):
    features = timm.create_model(
        "t2t_vit_7", features_only=True, out_indices=(0, -2), **SMALL
    )
    maps = features(torch.randn(1, 3, 48, 64))
    assert [tuple(item.shape) for item in maps] == [(1, 32, 3, 4)] * 2
    assert features.feature_info.channels() == [32, 32]
    assert features.feature_info.reduction() == [16, 16]
    assert len(features.model.encoder.blocks) == 2
    assert all(name.startswith("model.") for name in features.state_dict())
    sum(item.sum() for item in maps).backward()
    unused = [name for name, p in features.named_parameters() if p.grad is None]
    # The class token's path of the last block kept ends in no map, but is used.
    assert unused == []


def test_features_of_dense_wiring_have_their_own_widths():
    features = timm.create_model(
        "t2t_vit_dense",
        features_only=True,
        out_indices=3,
        img_size=32,
        dim=32,
        depth=4,
        dense_stages=(2, 2),
        growth=8,
    )
    maps = features(torch.randn(1, 3, 32, 32))
    assert [item.shape[1] for item in maps] == features.feature_info.channels()
    assert features.feature_info.channels() == [24, 32, 40]


def test_pruning_removes_positions_of_removed_blocks(images):
    model = timm.create_model(
        "t2t_vit_7", positions="learned_1d", positions_at="every_layer", **SMALL
    )
    assert model.prune_intermediate_layers([0, 1], prune_norm=True) == [0, 1]
    assert len(model.encoder.positions.tables) == 2
    assert model(images).shape == (2, 32)


def test_reset_classifier(model, images):
    model.double().reset_classifier(9)
    assert model.head.weight.dtype == torch.float64
    assert 0.01 < model.head.weight.std() < 0.03
    assert not model.head.bias.any()
    model.float()
    assert (model.num_classes, model(images).shape) == (9, (2, 9))
    assert model.get_classifier() is model.head
    model.reset_classifier(0, "avg")
    tokens = model.forward_features(images)
    torch.testing.assert_close(model(images), tokens[:, 1:].mean(1))
    model.reset_classifier(0, "")
    assert torch.equal(model(images), tokens)
    distilled = timm.create_model("t2t_vit_7_distilled", **SMALL).eval()
    distilled.reset_classifier(4)
    assert [head.out_features for head in distilled.get_classifier()] == [4, 4]
    assert distilled(images).shape == (2, 4)
    pooled = timm.create_model("t2t_vit_7_32", depth=2, dim=32)
    with pytest.raises(UserError, match="needs a class token"):
        pooled.reset_classifier(3, "token")


def test_checkpointing_changes_no_gradient(model, images):
    def gradients():
        model.train()
        model.zero_grad()
        torch.manual_seed(1)
        model(images).square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    plain = gradients()
    model.set_grad_checkpointing()
    assert all(map(torch.equal, plain, gradients()))


def test_layer_decay_reaches_every_layer(model):
    optimizer = timm.optim.create_optimizer_v2(
        model, opt="adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.5
    )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    scale, decay = {}, {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            scale[names[id(parameter)]] = group["lr_scale"]
            decay[names[id(parameter)]] = group["weight_decay"]
    assert scale.keys() == dict(model.named_parameters()).keys()
    assert scale["head.weight"] == 1
    assert scale["prefix"] == scale["tokenizer.project.weight"] == 0.5**4
    assert [scale[f"encoder.blocks.{n}.mlp.reduce.weight"] for n in range(3)] == [
        0.5**3,
        0.5**2,
        0.5,
    ]
    assert decay["prefix"] == decay["norm.weight"] == 0
    assert decay["head.weight"] == 0.05


def test_tokens_and_positions_are_not_decayed():
    model = timm.create_model("deit_tiny", **SMALL | {"num_heads": 4})
    assert model.no_weight_decay() == {"prefix", "encoder.positions.tables.0.table"}


def test_data_config_is_the_published_one(model):
    config = timm.data.resolve_model_data_config(model)
    assert config["input_size"] == (3, 32, 32)
    assert config["interpolation"] == "bicubic"
    assert config["crop_pct"] == 0.9
    assert config["mean"] == (0.485, 0.456, 0.406)
    assert config["std"] == (0.229, 0.224, 0.225)
    with torch.device("meta"):
        full = timm.create_model("t2t_vit_14_384")
        small = timm.create_model("t2t_vit_7_32")
    assert timm.data.resolve_model_data_config(full)["input_size"] == (3, 384, 384)
    assert timm.data.resolve_model_data_config(small)["input_size"] == (3, 32, 32)
    assert timm.data.resolve_model_data_config(small)["crop_pct"] == 1.0
    assert small.num_classes == 10


def test_entry_points_carry_the_models_name():
    build = entry_point("t2t_vit_14")
    assert build.__name__ == "t2t_vit_14"
    assert build.__doc__ == ZOO["t2t_vit_14"].about
