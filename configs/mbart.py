"""mBART (Liu et al. 2020, "Multilingual Denoising Pre-training for Neural Machine Translation").

    pretrain train --config=configs/mbart.py --workdir=runs/mbart

Variant: large (611M, the default), the released network of 25 languages: BART's large, pre-norm, with one more norm
after each stack, and embeddings times sqrt(width).

Data: one source per language, joined by " + ": data/cc25/en.txt and so on, one document per line, mixed by size to the
power 0.7. objective.languages and data.languages name them by the vocabulary's codes. 35 % of the words are removed in
spans of 3.5 on average (Poisson), and sentences are shuffled. Inputs end with their language's code, targets begin with
it, and so does a prompt of `generate`, followed by a space. The vocabulary is the release's, SentencePiece with a code
for each language (docs/data.md).

Adam with 0.9, 0.98 and 1e-6, and a rate that decays linearly over 500,000 updates; dropout is 0.1, then 0.05 from
update 250,000 and 0 from 400,000: stop there, and repeat the command with another --config.model.dropout, and with
--config.train.steps=500000 --config.schedule.decay_steps=500000. Peak and warm-up are not published; BART's are used.

Cost: the paper used 256 V100 for two and a half weeks, with 128,000 tokens on each per update.

Expect, fine-tuned on WMT 2016 from Romanian to English, BLEU of 37.8, where training from scratch has 34.0.
"""

from configs import common

VARIANTS = ("large",)


def get_config(variant=""):
    """Return the config; no variant means large."""
    variant = common.check_variant("mbart", variant or "large", VARIANTS)
    config = common.base()
    config.name = f"mbart:{variant}"
    config.model = common.encoder_decoder()
    config.model.update(layers=12, width=1024, heads=16, head_size=64, ff=4096, vocab_size=250_027, context=1024)
    config.model.update(positions="learned", position_offset=2, embedding_norm=True, scale_embedding=True)
    config.model.update(norm="layer", norm_epsilon=1e-5, placement="pre", activation="gelu_erf")
    config.model.update(attention_bias=True, ff_bias=True, scale_scores=True, scale_head=False)
    config.model.update(dropout=0.1, dropout_attention=0.1, dropout_ff=0.0, dropout_hidden=0.0)
    config.model.update(initialiser="normal", init_scale=0.02)
    config.objective = common.denoising()
    languages = ("en_XX", "de_DE", "fr_XX", "es_XX", "ro_RO", "ru_RU", "zh_CN")
    # Seven of the release's 25 languages; add sources and codes for more.
    config.objective.update(share=0.35, mean_span=3.5, languages=languages)
    config.tokenizer.update(kind="huggingface", path="tokenizers/mbart.json", vocab_size=250_019)
    config.data.update(
        train=" + ".join(f"text:data/cc25/{one[:2]}.txt?document=line&language={one}" for one in languages),
        languages=languages,
        temperature=1 / 0.7,
        length=512,
    )
    config.train.update(steps=500_000, batch_size=65_536)
    config.optimizer.update(name="adamw", b1=0.9, b2=0.98, epsilon=1e-6, clip=0.0)
    config.schedule.update(kind="linear", peak=4e-4, warmup=30_000, end=0.0)
    return config
