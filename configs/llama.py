"""Llama 2 and 3 (Touvron et al. 2023; Dubey et al. 2024), Mistral, Qwen2, Qwen3 and Gemma 1: one network.

    pretrain train --config=configs/llama.py:mini_stdlib --workdir=runs/llama     # a minute on 2 CPU cores, no files
    pretrain train --config=configs/llama.py:llama3.2_1b --workdir=runs/llama1b

Pre-norm with RMS norm, rotary positions, a gated feed-forward block, fewer key/value heads than heads, no biases.
Mistral adds a sliding window (Jiang et al. 2023), Qwen2 biases on query, key and value (Yang et al. 2024), Qwen3 a norm
of queries and keys (2025), Gemma scaled embeddings, heads wider than width / heads and gains around 0 (2024).

Variants: VARIANTS below, llama2_7b by default. Sizes are those of the releases. Optimiser, schedule and batch of 4
million tokens are Llama 2's (section 2.2), over 2 trillion tokens; no one published the data, so C4 is read. The
tokenizer is the release's tokenizer.json at tokenizers/NAME.json (extra hf), or train one:
--config.tokenizer.kind=sentencepiece --config.tokenizer.path= --config.tokenizer.algorithm=bpe.

Cost: 6 x parameters x tokens FLOPs: llama2_7b 8e22 for 2 trillion tokens, 184,320 hours of an A100 in the paper.

Expect (Llama 2, figure 5) a training loss of 1.75 nats per token for 7b after 2 trillion tokens, 1.5 for 70b;
mini_stdlib reaches 3.88 on the held-out files, 1.82 bits per byte.
"""

from configs import common

LLAMA2 = {"vocab_size": 32_000, "context": 4096}
LLAMA3 = {"vocab_size": 128_256, "context": 8192, "rope_theta": 5e5}
LLAMA32 = {**LLAMA3, "context": 131_072, "tied_head": True, "rope_scaling": (32.0, 1.0, 4.0, 8192.0)}
MISTRAL = {"vocab_size": 32_000, "context": 32_768, "attention": ("local_4096",)}
QWEN2 = {"vocab_size": 151_936, "context": 131_072, "rope_theta": 1e6, "norm_epsilon": 1e-6, "tied_head": True}
QWEN2 |= {"attention_bias": True, "output_bias": False}
QWEN3 = {"vocab_size": 151_936, "context": 40_960, "rope_theta": 1e6, "norm_epsilon": 1e-6, "tied_head": True}
QWEN3 |= {"qk_norm": True, "head_size": 128}
GEMMA = {"vocab_size": 256_000, "context": 8192, "norm_epsilon": 1e-6, "tied_head": True}
GEMMA |= {"activation": "gated_gelu_tanh", "scale_embedding": True, "norm_offset": 1.0, "norm_init_mean": 0.0}
MINI = {"vocab_size": 2048, "context": 64}

VARIANTS = {  # layers, width, heads, key/value heads, feed-forward size, peak learning rate, other keys
    "llama2_7b": (32, 4096, 32, 0, 11_008, 3e-4, LLAMA2),
    "llama2_70b": (80, 8192, 64, 8, 28_672, 1.5e-4, LLAMA2),
    "llama3_8b": (32, 4096, 32, 8, 14_336, 3e-4, LLAMA3),
    "llama3.2_1b": (16, 2048, 32, 8, 8192, 3e-4, LLAMA32),
    "mistral_7b": (32, 4096, 32, 8, 14_336, 3e-4, MISTRAL),
    "qwen2_0.5b": (24, 896, 14, 2, 4864, 3e-4, QWEN2),
    "qwen3_0.6b": (28, 1024, 16, 8, 3072, 3e-4, QWEN3),
    "gemma_2b": (18, 2048, 8, 1, 16_384, 3e-4, GEMMA),
    "mini_stdlib": (2, 128, 4, 2, 344, 3e-3, MINI),
}
ROW = 4096  # tokens


def get_config(variant=""):
    """Return the config of one model; no variant means llama2_7b."""
    variant = common.check_variant("llama", variant or "llama2_7b", VARIANTS)
    layers, width, heads, kv_heads, ff, peak, more = VARIANTS[variant]
    config = common.base()
    config.name = f"llama:{variant}"
    config.model.update(layers=layers, width=width, heads=heads, kv_heads=kv_heads, ff=ff)
    config.model.update(norm="rms", norm_epsilon=1e-5, positions="rotary", activation="gated_silu")
    config.model.update(attention_bias=False, ff_bias=False, tied_head=False, scale_residual_init=False)
    config.model.update(more)
    family = variant.partition("_")[0]
    config.tokenizer.update(kind="huggingface", path=f"tokenizers/{family}.json", vocab_size=config.model.vocab_size)
    config.data.update(train="tfds:c4/en?split=train", validation="tfds:c4/en?split=validation")
    config.data.update(layout="concat", length=ROW)
    # 1,024 rows are 4 million tokens, and 477,000 such updates 2 trillion.
    config.train.update(steps=477_000, batch_size=1024)
    config.evaluate.batch_size = 128
    config.optimizer.update(name="adamw", b1=0.9, b2=0.95, epsilon=1e-5, weight_decay=0.1, clip=1.0)
    config.schedule.update(kind="cosine", peak=peak, warmup=2000, end=0.1)
    config.model.remat = "full"
    if variant == "mini_stdlib":
        common.use_stdlib(config, pieces=2048, tokenizer="sentencepiece")
        config.tokenizer.algorithm = "bpe"
        config.model.remat = "none"
        config.evaluate.batch_size = 32
        config.optimizer.epsilon = 1e-8
        config.schedule.warmup = 30
    return config
