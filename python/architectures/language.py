"""Networks of Hugging Face's transformers from small configurations: words, and what else transformers hear and see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .architecture import Architecture, Inputs, floats, made, picture, words

# Few layers, and narrow ones: the operators are those of large ones.
_NARROW = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
_WORDS = {**_NARROW, "vocab_size": 256, "max_position_embeddings": 64}
_GROUPED = {**_WORDS, "num_key_value_heads": 2, "use_cache": False}
# Places that are padding, in the second text.
_PADDED = 5


def _made(model: str, config: str, **settings: Any) -> Callable[[], Any]:
    """A model from its configuration."""
    return lambda: made("transformers", model, made("transformers", config, **settings)())()


def _texts() -> Inputs:
    mask = torch.ones(2, 16, dtype=torch.int64)
    mask[1, -_PADDED:] = 0
    return {"input_ids": words(2, 16), "attention_mask": mask}


def _text() -> Inputs:
    return {"input_ids": words(1, 16)}


def _any_texts() -> dict[str, Any]:
    free = {0: torch.export.Dim("texts", min=1, max=32), 1: torch.export.Dim("length", min=2, max=64)}
    return {"input_ids": free, "attention_mask": free}


def _of(
    name: str,
    model: str,
    config: str,
    inputs: Callable[[], Inputs] = _texts,
    dtype: torch.dtype = torch.float32,
    dynamic_shapes: Any = None,
    **settings: Any,
) -> Architecture:
    return Architecture(f"transformers/{name}", _made(model, config, **settings), inputs, dtype, dynamic_shapes)


_EXPERTS = {"num_local_experts": 4, "experts_implementation": "batched_mm"}
_DISTIL = {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "vocab_size": 256, "max_position_embeddings": 64}
_GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256, "n_positions": 64, "use_cache": False}
_OPT = {"hidden_size": 64, "word_embed_proj_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 128}
_T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 256, "use_cache": False}
_BART = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "vocab_size": 256,
    "use_cache": False,
}
_WHISPER = {**_BART, "num_mel_bins": 80, "max_source_positions": 100, "pad_token_id": 0}
_WAV2VEC2 = {**_NARROW, "conv_dim": (32,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
_SEES = {**_NARROW, "image_size": 64, "patch_size": 16}
_SEGFORMER = {"hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 4, 8]}
_MAMBA = {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "vocab_size": 256, "use_cache": False}
_SERIES = {"context_length": 64, "patch_length": 8, "patch_stride": 8, "prediction_length": 16, "num_input_channels": 3}
_RESNET = {"embedding_size": 16, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1], "out_features": ["stage4"]}


def _detr() -> Any:
    backbone = made("transformers", "ResNetConfig", **_RESNET)()
    small = {
        **_BART,
        "use_timm_backbone": False,
        "use_pretrained_backbone": False,
        "backbone_config": backbone,
        "num_queries": 10,
    }
    return _made("DetrForObjectDetection", "DetrConfig", **small)()


class _Encoder:
    """Makes the encoder of a model that has a decoder, too."""

    def __init__(self, model: Callable[[], Any]) -> None:
        self.model = model

    def __call__(self) -> Any:
        return self.model().get_encoder()


LANGUAGE = (
    _of("bert", "BertModel", "BertConfig", dynamic_shapes=_any_texts(), **_WORDS),
    _of("distilbert", "DistilBertModel", "DistilBertConfig", **_DISTIL),
    _of("roberta", "RobertaModel", "RobertaConfig", **_WORDS),
    _of("deberta_v2", "DebertaV2Model", "DebertaV2Config", relative_attention=True, pos_att_type=["p2c", "c2p"], **_WORDS),
    _of("gpt2", "GPT2LMHeadModel", "GPT2Config", _text, **_GPT2),
    _of("opt", "OPTForCausalLM", "OPTConfig", **_OPT, vocab_size=256, max_position_embeddings=64, use_cache=False),
    _of("llama", "LlamaForCausalLM", "LlamaConfig", _text, **_GROUPED),
    _of("mistral", "MistralForCausalLM", "MistralConfig", _text, torch.float16, sliding_window=8, **_GROUPED),
    _of("qwen2", "Qwen2ForCausalLM", "Qwen2Config", _text, torch.float16, **_GROUPED),
    _of("gemma", "GemmaForCausalLM", "GemmaConfig", _text, head_dim=16, **_GROUPED),
    _of("mixtral", "MixtralForCausalLM", "MixtralConfig", _text, num_local_experts=4, **_GROUPED),
    _of("mixtral_batched", "MixtralForCausalLM", "MixtralConfig", _text, **_EXPERTS, **_GROUPED),
    _of("mamba", "MambaForCausalLM", "MambaConfig", _text, **_MAMBA),
    _of("t5_encoder", "T5EncoderModel", "T5Config", **_T5),
    _of("bart", "BartModel", "BartConfig", max_position_embeddings=64, **_BART),
    Architecture(
        "transformers/whisper_encoder",
        _Encoder(_made("WhisperModel", "WhisperConfig", **_WHISPER)),
        lambda: {"input_features": floats(1, 80, 200)},
        torch.float16,
    ),
    _of("wav2vec2", "Wav2Vec2Model", "Wav2Vec2Config", lambda: {"input_values": floats(1, 4000)}, **_WAV2VEC2),
    _of("clip_vision", "CLIPVisionModel", "CLIPVisionConfig", lambda: {"pixel_values": floats(1, 3, 64, 64)}, **_SEES),
    _of("clip_text", "CLIPTextModel", "CLIPTextConfig", **_WORDS, eos_token_id=255),
    _of("vit", "ViTModel", "ViTConfig", picture(64), **_SEES),
    _of("dinov2", "Dinov2Model", "Dinov2Config", picture(64), **_SEES),
    _of("videomae", "VideoMAEModel", "VideoMAEConfig", lambda: (floats(1, 4, 3, 64, 64),), num_frames=4, **_SEES),
    _of(
        "yolos",
        "YolosForObjectDetection",
        "YolosConfig",
        picture(64),
        num_detection_tokens=10,
        **{**_SEES, "image_size": [64, 64]},
    ),
    Architecture("transformers/detr", _detr, picture(64)),
    _of("patchtst", "PatchTSTForPrediction", "PatchTSTConfig", lambda: (floats(2, 64, 3),), d_model=64, ffn_dim=128, **_SERIES),
    _of("segformer", "SegformerForSemanticSegmentation", "SegformerConfig", picture(64), decoder_hidden_size=64, **_SEGFORMER),
)
