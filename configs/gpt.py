"""GPT (Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training").

    pretrain train --config=configs/gpt.py --workdir=runs/gpt

Variant: base (the default), 116,534,784 parameters, later called 117M.

A post-norm decoder of 12 layers, 768 wide, without a norm after the embedding; learned positions, tanh GELU, dropout
0.1 on embeddings, attention and branches; everything starts at N(0, 0.02). The released code has tokens and positions
in one table, so its softmax includes positions and its embedding dropout acts on the table. Here the softmax is over
tokens, and dropout acts on the sum of the embeddings.

Data: BooksCorpus, 7,000 books, is no longer available; put any books into data/books, one file each. The tokenizer is
GPT's, 40,478 lower-cased pieces (docs/data.md); it has no token between documents, so texts are joined as they are.

Batch, rate, warm-up, decay and the cosine over 100 epochs are the paper's. Clipping at 1.0 is that of its fine-tuning.

Cost: 100 epochs of about 1 billion tokens: 7e19 FLOPs, a month on the paper's 8 GPUs of 2018.

Expect a perplexity of 18.4 per token on BooksCorpus.
"""

from configs import common

VARIANTS = ("base",)


def get_config(variant=""):
    """Return the config; no variant means base."""
    variant = common.check_variant("gpt", variant or "base", VARIANTS)
    config = common.base()
    config.name = f"gpt:{variant}"
    config.model.update(vocab_size=40_478, context=512, placement="post")
    config.model.update(dropout_embedding=0.1, dropout_attention=0.1, dropout_residual=0.1)
    config.model.update(position_init_std=0.02, scale_residual_init=False)
    config.tokenizer.update(kind="huggingface", path="tokenizers/gpt.json", vocab_size=40_478)
    config.data.update(train="text:data/books/*.txt", layout="concat", length=512)
    # 100 epochs.
    config.train.update(steps=3_050_000, batch_size=64)
    config.optimizer.update(name="adamw", b1=0.9, b2=0.999, epsilon=1e-8, weight_decay=0.01, clip=1.0)
    config.schedule.update(kind="cosine", peak=2.5e-4, warmup=2000, end=0.0)
    return config
