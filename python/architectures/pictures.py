"""Networks that see: classification, segmentation, detection, video and flow of torchvision, classification of timm."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .architecture import Architecture, floats, made, picture

_FREE = torch.export.Dim("pictures", min=1, max=64)


def _seen(name: str, side: int = 64, batch: int = 1, dtype: torch.dtype = torch.float32, **settings: Any) -> Architecture:
    """A network of torchvision that says what is in a picture."""
    network = made("torchvision.models", name, weights=None, num_classes=100, **settings)
    return Architecture(f"torchvision/{name}", network, picture(side, batch), dtype)


def _any_batch(name: str) -> Architecture:
    """The same for any number of pictures."""
    network = made("torchvision.models", name, weights=None, num_classes=100)
    return Architecture(f"torchvision/{name}", network, picture(64, 4), dynamic_shapes=({0: _FREE},))


def _parted(name: str) -> Architecture:
    """A network of torchvision that says what each pixel belongs to."""
    network = made("torchvision.models.segmentation", name, weights=None, weights_backbone=None, num_classes=21)
    return Architecture(f"torchvision/{name}", network, picture(64))


def _timm(
    name: str, side: int = 64, *, is_told: bool = False, dtype: torch.dtype = torch.float32, **settings: Any
) -> Architecture:
    """A network of timm; some are told the size of their pictures."""
    told = {"img_size": side} if is_told else {}
    network = made("timm", "create_model", name, pretrained=False, num_classes=100, **told, **settings)
    return Architecture(f"timm/{name}", network, picture(side), dtype)


class _Scores(nn.Module):
    """A detector up to its scores and boxes for each place, without the choice of the best ones."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head

    def forward(self, pictures: torch.Tensor) -> Any:
        return self.head(list(self.backbone(pictures).values()))


class _Detects(nn.Module):
    """A whole detector, called with one picture."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, picture: torch.Tensor) -> Any:
        return self.detector([picture])


def _detector(name: str, wrapper: type[nn.Module], **settings: Any) -> Any:
    detector = made("torchvision.models.detection", name, weights=None, weights_backbone=None, num_classes=10, **settings)
    return lambda: wrapper(detector())


def _small_maxvit() -> Any:
    channels, layers = [32, 64, 128, 256], [1, 1, 1, 1]
    return made("torchvision.models", "MaxVit", (64, 64), 32, 2, channels, layers, 32, 0.0, num_classes=100)()


class _FewSteps(nn.Module):
    """RAFT with as many refinements as a call takes."""

    def __init__(self, flow: nn.Module, steps: int) -> None:
        super().__init__()
        self.flow, self.steps = flow, steps

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> Any:
        return self.flow(first, second, num_flow_updates=self.steps)[-1]


def _video(name: str, frames: int = 8, side: int = 32, **settings: Any) -> Architecture:
    network = made("torchvision.models.video", name, weights=None, num_classes=50, **settings)
    return Architecture(f"torchvision/{name}", network, lambda: (floats(1, 3, frames, side, side),))


PICTURES = (
    _seen("alexnet", 96),
    _seen("vgg11", 32),
    _seen("resnet50"),
    _seen("resnext50_32x4d", dtype=torch.float16),
    _any_batch("mobilenet_v2"),
    _seen("mobilenet_v3_small"),
    _seen("efficientnet_b0"),
    _seen("convnext_tiny", dtype=torch.float16),
    _seen("densenet121"),
    _seen("squeezenet1_1"),
    _seen("shufflenet_v2_x0_5"),
    _seen("regnet_y_400mf"),
    _seen("mnasnet0_5"),
    _seen("googlenet", aux_logits=False),
    _seen("inception_v3", 96, aux_logits=False),
    _seen("vit_b_16", image_size=64),
    _seen("swin_t"),
    Architecture("torchvision/maxvit", _small_maxvit, picture(64)),
    _parted("fcn_resnet50"),
    _parted("deeplabv3_mobilenet_v3_large"),
    _parted("lraspp_mobilenet_v3_large"),
    Architecture("torchvision/retinanet", _detector("retinanet_resnet50_fpn", _Scores), picture(64)),
    Architecture("torchvision/ssdlite320", _detector("ssdlite320_mobilenet_v3_large", _Detects), lambda: (floats(3, 96, 96),)),
    Architecture(
        "torchvision/fasterrcnn", _detector("fasterrcnn_mobilenet_v3_large_320_fpn", _Detects), lambda: (floats(3, 96, 96),)
    ),
    _video("r3d_18"),
    _video("r2plus1d_18"),
    _video("swin3d_t"),
    Architecture(
        "torchvision/raft_small",
        lambda: _FewSteps(made("torchvision.models.optical_flow", "raft_small", weights=None)(), 2),
        lambda: (floats(1, 3, 128, 128), floats(1, 3, 128, 128)),
    ),
    _timm("mixer_s32_224", is_told=True),
    _timm("poolformer_s12"),
    _timm("levit_128s", 224),
    _timm("ghostnet_050"),
    _timm("edgenext_xx_small"),
    _timm("mobilevit_xxs"),
    _timm("coat_tiny", is_told=True),
    _timm("convit_tiny", is_told=True, depth=6),
    _timm("deit_tiny_patch16_224", is_told=True, dtype=torch.float16),
    _timm("beit_base_patch16_224", is_told=True, depth=4, embed_dim=192, num_heads=3),
    _timm("xcit_nano_12_p16_224"),
    _timm("repvgg_a0"),
    _timm("hrnet_w18_small"),
    _timm("fastvit_t8"),
    _timm("swinv2_cr_tiny_224", 64, is_told=True, window_size=2),
    _timm("efficientvit_b0"),
)
