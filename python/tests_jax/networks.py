"""Small networks as functions of their weights and an input: dense, and a block of a transformer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def dense_weights(dtype: Any = np.float32) -> dict[str, Any]:
    random = np.random.default_rng(1)

    def layer(come: int, go: int) -> dict[str, Any]:
        kernel = random.standard_normal((come, go)) / np.sqrt(come)
        return {"kernel": kernel.astype(dtype), "bias": random.standard_normal(go).astype(dtype)}

    return {"first": layer(64, 128), "second": layer(128, 32)}


def dense(weights: Any, x: jax.Array) -> jax.Array:
    first, second = weights["first"], weights["second"]
    hidden = jax.nn.gelu(x @ first["kernel"] + first["bias"])
    return jax.nn.softmax(hidden @ second["kernel"] + second["bias"])


def block_weights(layers: int = 2, width: int = 32) -> dict[str, Any]:
    random = np.random.default_rng(2)

    def matrix(*shape: int) -> Any:
        return (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    def layer() -> dict[str, Any]:
        return {
            "scale": 1 + 0.1 * matrix(width),
            "qkv": matrix(width, 3 * width),
            "out": matrix(width, width),
            "up": matrix(width, 4 * width),
            "down": matrix(4 * width, width),
        }

    return {"words": matrix(64, width) * 8, "layers": [layer() for _ in range(layers)]}


def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale


def attention(x: jax.Array, qkv: jax.Array, heads: int) -> jax.Array:
    batch, tokens, width = x.shape
    q, k, v = jnp.split((x @ qkv).reshape(batch, tokens, 3 * heads, width // heads), 3, axis=2)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(width // heads)
    mask = jnp.tril(jnp.ones((tokens, tokens), bool))
    shares = jax.nn.softmax(jnp.where(mask, scores, -1e9))
    return jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(batch, tokens, width)


def transformer(weights: Any, x: jax.Array) -> jax.Array:
    """Layers of causal attention; its input is activations, its output scores of words."""
    for layer in weights["layers"]:
        x = x + attention(norm(x, layer["scale"]), layer["qkv"], heads=2) @ layer["out"]
        x = x + jax.nn.gelu(norm(x, layer["scale"]) @ layer["up"]) @ layer["down"]
    return x @ weights["words"].T
