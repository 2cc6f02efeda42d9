"""Our models as timm's users meet them."""

import copy
import subprocess
import sys

import pytest
import timm
import timm.data
import timm.models
import timm.optim
import timm.utils
import torch

import t2t
from t2t.errors import UserError
from t2t.models.create import create_model
from t2t.models.timm_support.entry_points import entry_point
from t2t.models.zoo import CONFIGS, ZOO

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
    assert CONFIGS.keys() <= set(timm.list_models())
    for name in ("resnet50", "deit_tiny_patch16_224"):
        assert timm.models.model_entrypoint(name).__module__.startswith("timm.")
    for name in CONFIGS:
        assert (
            timm.models.model_entrypoint(name).__module__
            == "t2t.models.timm_support.entry_points"
        )


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


@pytest.fixture(params=["checkpoint_path", "overlay"])
def source(request, tmp_path):
    """timm's two ways to a file: its path, or what is known of pretrained weights."""

    def save(state):
        file = tmp_path / "weights.pth"
        torch.save(state, file)
        if request.param == "checkpoint_path":
            return {"checkpoint_path": file}
        overlay = {"file": str(file), "num_classes": 5}
        return {"pretrained": True, "pretrained_cfg_overlay": overlay}

    return save


@pytest.mark.parametrize("num_classes", [0, 6])
@pytest.mark.parametrize("name", ["t2t_vit_7", "t2t_vit_7_distilled"])
def test_checkpoints_of_other_classes_load_through_timm(
    name, num_classes, source, images, caplog
):
    model = timm.create_model(name, **SMALL).eval()
    options = SMALL | {"num_classes": num_classes}
    other = timm.create_model(name, **options, **source(model.state_dict())).eval()
    tokens = model.forward_features(images)
    assert torch.equal(other.forward_features(images), tokens)
    assert other.num_classes == num_classes
    if "head for 5 classes" in caplog.text:
        kept = "skipped" if num_classes == 0 else "replaced by a new one for 6"
        assert kept in caplog.text


@pytest.mark.parametrize("in_chans", [1, 2, 4, 6])
@pytest.mark.parametrize("tokenizer", ["patch", "t2t", "t2t_performer", "t2t_conv"])
def test_checkpoints_of_other_channels_load_through_timm(
    tokenizer, in_chans, source, images
):
    options = SMALL | {"tokenizer": tokenizer}
    model = timm.create_model("t2t_vit_7", **options).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    saved = source(model.state_dict())
    if (tokenizer, in_chans) == ("t2t", 1):
        with pytest.raises(UserError, match="not those of softmax tokens"):
            timm.create_model("t2t_vit_7", in_chans=1, **options, **saved)
        return
    other = timm.create_model("t2t_vit_7", in_chans=in_chans, **options, **saved).eval()
    assert other.pretrained_cfg["first_conv"] is not None
    if in_chans in (2, 4):  # a layer for so many channels gives no image the same
        assert other(images[:, [0] * in_chans]).isfinite().all()
        return
    same = images[:, :1].expand(-1, 3, -1, -1) if in_chans == 1 else images
    seen = images[:, :1] if in_chans == 1 else images.repeat(1, 2, 1, 1)
    torch.testing.assert_close(other(seen), model(same), rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_is_still_refused(model, source):
    state = model.state_dict()
    del state["encoder.blocks.1.norm1.weight"]
    with pytest.raises(RuntimeError, match=r"blocks\.1\.norm1|Missing"):
        timm.create_model("t2t_vit_7", **SMALL, **source(state))


@pytest.mark.parametrize("rate", ["pos_drop_rate", "proj_drop_rate", "attn_drop_rate"])
@pytest.mark.parametrize("name", ["t2t_vit_7", "t2t_vit_16_ghost", "t2t_vit_14_se"])
def test_dropout_by_timms_names(name, rate, images):
    options = SMALL | {"num_heads": 4, "token_dropout": 0.0}
    model = timm.create_model(name, **{rate: 0.5}, **options)
    plain = timm.create_model(name, **options)
    assert model.state_dict().keys() == plain.state_dict().keys()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(plain(images), plain(images))
    assert not torch.equal(model(images), model(images))
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(images), plain.eval()(images))
    with pytest.raises(UserError, match=f"{rate}=1.5 must be from 0 to below 1"):
        timm.create_model(name, **{rate: 1.5}, **options)


def test_dropped_attention_keeps_its_mean(model, images):
    """As timm's ViT: what is kept of the map is scaled up."""
    mixer = model.encoder.blocks[0].mixer
    tokens = torch.randn(1, 5, 32)
    expected = mixer(tokens, (2, 2))
    mixer.attn.attn_drop.p = 0.5
    mixer.train()
    many = mixer(tokens.expand(4000, -1, -1), (2, 2)).mean(0, keepdim=True)
    torch.testing.assert_close(many, expected, atol=0.01, rtol=0.1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"positions": "relative", "positions_at": "every_layer"},
        {"mixer": "linformer"},
        {"drop_path_rate": 0.1, "attn_drop_rate": 0.1},
    ],
)
@pytest.mark.parametrize("method", ["fx", "hook"])
def test_timm_extracts_attention(method, options, images):
    model = timm.create_model("t2t_vit_7", **SMALL, **options).eval()
    with torch.no_grad():
        logits = model(images)
        maps = timm.utils.AttentionExtract(model, method=method)(images)
        again = model(images)
    assert len(maps) == 3
    tokens, grid = model.tokenize(images)
    tokens = model.encoder.positions.add_to(tokens, 0, grid)
    block = model.encoder.blocks[0]
    bias = model.encoder.positions.attention_bias(0, grid)
    expected = block.mixer.weights(block.norm1(tokens), grid, bias)
    torch.testing.assert_close(next(iter(maps.values())), expected)
    torch.testing.assert_close(again, logits)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["t2t_vit_7", "t2t_vit_7_distilled"])
def test_an_fx_graph_computes_what_the_model_does(name, training, images):
    model = timm.create_model(name, token_dropout=0.0, **SMALL).train(training)
    nodes = timm.models.get_graph_node_names(model)[1]
    graph = timm.models.GraphExtractNet(model, [nodes[-1]], squeeze_out=True)
    torch.testing.assert_close(graph.train(training)(images), model(images))
    # Nothing is in it but what the logits need.
    assert not any("blocks" in node.name for node in graph.graph_module.graph.nodes)


@pytest.mark.parametrize("name", CONFIGS)
def test_first_layers_are_named(name):
    with torch.device("meta"):
        model = timm.create_model(name)
    for layer in model.default_cfg["first_conv"]:
        assert f"{layer}.weight" in model.state_dict()


def test_set_input_size_takes_what_timms_does(model):
    model.set_input_size(img_size=(48, 64))
    assert model.config.image_size == (48, 64)
    assert model.encoder.positions.tables[0].grid == (3, 4)
    model.set_input_size()
    model.set_input_size(img_size=32, patch_size=16)
    assert model.config.image_size == (32, 32)
    with pytest.raises(UserError, match="patch_size=8 cannot be changed"):
        model.set_input_size(patch_size=8)


def test_torchscript_is_refused_with_what_to_use(model):
    with (
        pytest.warns(FutureWarning, match="deprecated"),
        pytest.raises(UserError, match=r"torch\.export"),
    ):
        torch.jit.script(model)


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
    with pytest.raises(UserError, match="requested, but the model has 3"):
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
