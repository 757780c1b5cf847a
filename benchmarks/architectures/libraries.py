"""Networks of torchvision, transformers and timm, with random weights, that nothing here was made for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Values = Sequence[tuple[Any, ...]]
Inputs = Callable[[Any, Any], Values]


@dataclass(frozen=True)
class Library:
    """A network of a library, as a module of PyTorch whose result is one tensor."""

    make: Callable[[], Any]
    inputs: Inputs
    """Examples, of PyTorch and a generator of random numbers."""
    names: tuple[str, ...]


def _result(network: Any, names: Sequence[str] = (), key: Any = 0, **more: Any) -> Any:
    """A module that calls the network, with inputs by name if there are names, for one of its results."""
    import torch

    class Result(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *given: Any) -> Any:
            found = (
                self.network(**dict(zip(names, given, strict=True)), **more)
                if names
                else self.network(*given)
            )
            return found[key] if isinstance(found, tuple | dict) else found

    return Result()


def _images(side: int, batch: int = 1) -> Inputs:
    return lambda torch, draws: [(torch.rand(batch, 3, side, side, generator=draws),)]


def _torchvision(name: str, side: int = 224, batch: int = 1, **options: Any) -> Library:
    def make() -> Any:
        import torchvision

        return _result(getattr(torchvision.models, name)(weights=None, **options))

    return Library(make, _images(side, batch), ("image",))


def _segmentation(name: str, side: int = 256, batch: int = 1) -> Library:
    def make() -> Any:
        import torchvision

        network = getattr(torchvision.models.segmentation, name)(weights=None, weights_backbone=None)
        return _result(network, key="out")

    return Library(make, _images(side, batch), ("image",))


def _transformers(name: str, inputs: Inputs, names: tuple[str, ...], **options: Any) -> Library:
    """A model whose configuration's class is called as its own, up to ``Model`` or ``For...``."""

    def make() -> Any:
        import transformers

        network = getattr(transformers, name)
        configuration = network.config_class(**options)
        configuration.use_cache = False
        return _result(network(configuration), names, return_dict=False)

    return Library(make, inputs, names)


def _timm(name: str, side: int = 224) -> Library:
    def make() -> Any:
        import timm

        return _result(timm.create_model(name, pretrained=False))

    return Library(make, _images(side), ("image",))


def _text(length: int, batch: int = 1) -> Inputs:
    return lambda torch, draws: [(torch.randint(0, 1000, (batch, length), generator=draws),)]


def _masked_text(length: int, batch: int = 1) -> Inputs:
    def inputs(torch: Any, draws: Any) -> Values:
        return [
            (
                torch.randint(0, 1000, (batch, length), generator=draws),
                torch.ones(batch, length, dtype=torch.int64),
            )
        ]

    return inputs


def _tokens(length: int) -> Inputs:
    """Tokens, which of them count, and where they are."""

    def inputs(torch: Any, draws: Any) -> Values:
        [(tokens, mask)] = _masked_text(length)(torch, draws)
        return [(tokens, mask, torch.arange(length)[None])]

    return inputs


def _sound(count: int) -> Inputs:
    return lambda torch, draws: [(torch.randn(1, count, generator=draws),)]


_SMALL = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6}
_WIDE = {**_SMALL, "intermediate_size": 1536}
_WORDS = {"vocab_size": 1000}
_MASKED = ("input_ids", "attention_mask")
_PLACED = (*_MASKED, "position_ids")
_PIXELS = ("pixel_values",)
_LLAMA = {**_WIDE, **_WORDS, "num_key_value_heads": 2, "head_dim": 64, "pad_token_id": 0}


def _decoder(name: str, **more: Any) -> Library:
    return _transformers(name, _tokens(64), _PLACED, **{**_LLAMA, **more})


NETWORKS: dict[str, Library] = {
    "ResNet-18": _torchvision("resnet18"),
    "ResNet-18, batch 8": _torchvision("resnet18", batch=8),
    "VGG-11": _torchvision("vgg11"),
    "AlexNet": _torchvision("alexnet"),
    "DenseNet-121": _torchvision("densenet121"),
    "SqueezeNet": _torchvision("squeezenet1_1"),
    "MobileNetV3, small": _torchvision("mobilenet_v3_small"),
    "MobileNetV3, large": _torchvision("mobilenet_v3_large"),
    "MNASNet": _torchvision("mnasnet1_0"),
    "EfficientNet-B0": _torchvision("efficientnet_b0"),
    "RegNetY": _torchvision("regnet_y_400mf"),
    "ShuffleNetV2": _torchvision("shufflenet_v2_x1_0"),
    "GoogLeNet": _torchvision("googlenet", aux_logits=False, init_weights=False),
    "Inception-v3": _torchvision("inception_v3", 299, aux_logits=False, init_weights=False),
    "ResNeXt-50": _torchvision("resnext50_32x4d"),
    "ConvNeXt, tiny": _torchvision("convnext_tiny"),
    "ConvNeXt, batch 8": _torchvision("convnext_tiny", batch=8),
    "Swin, tiny": _torchvision("swin_t"),
    "Swin, batch 8": _torchvision("swin_t", batch=8),
    "MaxViT, tiny": _torchvision("maxvit_t"),
    "LR-ASPP": _segmentation("lraspp_mobilenet_v3_large"),
    "FCN": _segmentation("fcn_resnet50"),
    # Its pooled branch is one pixel an image, of which batch normalisation learns nothing.
    "DeepLabV3, batch 2": _segmentation("deeplabv3_mobilenet_v3_large", batch=2),
    "BERT, 6 layers": _transformers("BertModel", _masked_text(128), _MASKED, **_WIDE, **_WORDS),
    "BERT, batch 8": _transformers("BertModel", _masked_text(128, 8), _MASKED, **_WIDE, **_WORDS),
    "DistilBERT": _transformers("DistilBertModel", _masked_text(128), _MASKED, **_WORDS),
    "ALBERT": _transformers("AlbertModel", _masked_text(128), _MASKED, **_WIDE, **_WORDS),
    "ELECTRA": _transformers("ElectraModel", _masked_text(128), _MASKED, **_WORDS),
    "OPT, 64 tokens": _transformers(
        "OPTForCausalLM",
        _text(64),
        ("input_ids",),
        hidden_size=384,
        num_hidden_layers=6,
        ffn_dim=1536,
        num_attention_heads=6,
        **_WORDS,
    ),
    "T5, encoder": _transformers(
        "T5EncoderModel",
        _text(128),
        ("input_ids",),
        d_model=384,
        d_ff=1024,
        num_layers=6,
        num_heads=6,
        **_WORDS,
    ),
    "ViT, 6 layers": _transformers("ViTModel", _images(224), _PIXELS, **_WIDE),
    "DeiT, batch 4": _transformers("DeiTModel", _images(224, 4), _PIXELS, **_WIDE),
    "CLIP, vision": _transformers("CLIPVisionModel", _images(224), _PIXELS, **_WIDE),
    "DINOv2": _transformers("Dinov2Model", _images(224), _PIXELS, **_SMALL),
    "YOLOS": _transformers("YolosModel", _images(256), _PIXELS, image_size=[256, 256], **_WIDE),
    "SegFormer": _transformers("SegformerModel", _images(256), _PIXELS),
    "wav2vec 2.0": _transformers(
        "Wav2Vec2Model", _sound(16000), ("input_values",), conv_dim=(256,) * 7, vocab_size=32, **_WIDE
    ),
    "Llama, 64 tokens": _decoder("LlamaForCausalLM"),
    "Mistral, 64 tokens": _decoder("MistralForCausalLM"),
    "Qwen 3, 64 tokens": _decoder("Qwen3ForCausalLM"),
    "Gemma 2, 64 tokens": _decoder("Gemma2ForCausalLM"),
    "Phi, 64 tokens": _decoder("PhiForCausalLM", num_key_value_heads=6),
    "GPT-NeoX, 64 tokens": _decoder("GPTNeoXForCausalLM"),
    "DeBERTa-v2": _transformers("DebertaV2Model", _masked_text(128), _MASKED, **_WIDE, **_WORDS),
    "XLNet": _transformers(
        "XLNetModel", _masked_text(128), _MASKED, d_model=384, n_layer=6, n_head=6, d_inner=1536, **_WORDS
    ),
    "Longformer": _transformers(
        "LongformerModel", _masked_text(512), _MASKED, max_position_embeddings=1024, **_WIDE, **_WORDS
    ),
}
"""Name → network."""

_SIDES = {
    "cspresnet50": 256,
    "tinynet_a": 192,
    "edgenext_small": 256,
    "mobilevit_s": 256,
    "legacy_xception": 299,
}
"""Of timm's networks whose images are not 224 pixels wide."""
_OF_TIMM = """
resnet50d seresnet50 res2net50_26w_4s hrnet_w18_small dla34 vovnet39a cspresnet50 repvgg_a2 regnetx_008
ghostnet_100 tinynet_a mixnet_s tf_efficientnet_lite0 mobilenetv4_conv_small mobilenetv4_hybrid_medium
mobileone_s1 efficientformer_l1 efficientvit_b1 edgenext_small mobilevit_s poolformer_s12 convmixer_768_32
mixer_s32_224 resmlp_12_224 levit_128 pit_s_224 cait_xxs24_224 twins_svt_small pvt_v2_b0 convnextv2_nano
starnet_s1 tiny_vit_5m_224 rexnet_100 skresnet18 resnest14d legacy_xception davit_tiny mvitv2_tiny
gcvit_xxtiny lcnet_100 rdnet_tiny mambaout_femto swiftformer_xs fasternet_t0
"""
TIMM: dict[str, Library] = {f"timm {name}": _timm(name, _SIDES.get(name, 224)) for name in _OF_TIMM.split()}
"""The same of timm's."""
