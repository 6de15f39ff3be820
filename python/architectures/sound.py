"""Networks of torchaudio that hear."""

from __future__ import annotations

import torch

from .architecture import Architecture, floats, lively, made

_CONFORMER = {"input_dim": 40, "num_heads": 4, "ffn_dim": 128, "num_layers": 2, "depthwise_conv_kernel_size": 15}
_TASNET = {"enc_num_feats": 64, "msk_num_feats": 32, "msk_num_hidden_feats": 64, "msk_num_layers": 4, "msk_num_stacks": 2}


SOUND = (
    Architecture(
        "torchaudio/conformer",
        made("torchaudio.models", "Conformer", **_CONFORMER),
        lambda: (floats(2, 32, 40), torch.tensor([32, 20])),
    ),
    Architecture(
        "torchaudio/wav2letter",
        lively(made("torchaudio.models", "Wav2Letter", num_classes=40, input_type="mfcc", num_features=13)),
        lambda: (floats(1, 13, 64),),
    ),
    Architecture("torchaudio/conv_tasnet", made("torchaudio.models", "ConvTasNet", **_TASNET), lambda: (floats(1, 1, 1600),)),
    Architecture(
        "torchaudio/hdemucs",
        made("torchaudio.models", "HDemucs", ["drums", "voice"], channels=8, nfft=1024, depth=4),
        lambda: (floats(1, 2, 8192),),
    ),
    Architecture(
        "torchaudio/emformer",
        made("torchaudio.models", "Emformer", 40, 4, 128, 2, 8, right_context_length=2),
        lambda: (floats(2, 18, 40), torch.tensor([16, 11])),
    ),
    Architecture(
        "torchaudio/wavernn",
        made(
            "torchaudio.models",
            "WaveRNN",
            [4, 4, 2],
            32,
            32,
            n_res_block=2,
            n_rnn=64,
            n_fc=64,
            n_freq=20,
            n_hidden=32,
            n_output=32,
        ),
        lambda: (floats(1, 1, 32 * 6), floats(1, 1, 20, 10)),
    ),
    Architecture("torchaudio/deepspeech", made("torchaudio.models", "DeepSpeech", 40, 128), lambda: (floats(1, 1, 24, 40),)),
)
