"""Networks of diffusers that draw pictures, from small configurations."""

from __future__ import annotations

from typing import Any

import torch

from .architecture import Architecture, floats, made, words

_UNET: dict[str, Any] = {
    "sample_size": 16,
    "layers_per_block": 1,
    "block_out_channels": (32, 64),
    "norm_num_groups": 8,
}
_LATENT = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8, "latent_channels": 4}
_DIT = {"num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 2, "patch_size": 2}


GENERATION = (
    Architecture(
        "diffusers/unet2d",
        made(
            "diffusers",
            "UNet2DModel",
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            attention_head_dim=16,
            **_UNET,
        ),
        lambda: {"sample": floats(1, 3, 16, 16), "timestep": torch.tensor([10.0]), "return_dict": False},
    ),
    Architecture(
        "diffusers/unet2d_condition",
        made(
            "diffusers",
            "UNet2DConditionModel",
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            cross_attention_dim=32,
            attention_head_dim=4,
            **_UNET,
        ),
        lambda: {
            "sample": floats(1, 4, 16, 16),
            "timestep": torch.tensor([10]),
            "encoder_hidden_states": floats(1, 8, 32),
            "return_dict": False,
        },
        torch.float16,
    ),
    Architecture(
        "diffusers/autoencoder_kl",
        made(
            "diffusers",
            "AutoencoderKL",
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            **_LATENT,
        ),
        lambda: {"sample": floats(1, 3, 32, 32), "return_dict": False},
    ),
    Architecture(
        "diffusers/dit",
        made("diffusers", "DiTTransformer2DModel", sample_size=16, in_channels=4, norm_num_groups=8, **_DIT),
        lambda: {
            "hidden_states": floats(1, 4, 16, 16),
            "timestep": torch.tensor([10]),
            "class_labels": words(1, most=1000),
            "return_dict": False,
        },
    ),
)
