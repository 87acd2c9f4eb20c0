"""GPT (Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training").

    pretrain train --config=configs/gpt.py --workdir=runs/gpt

Variant: base (the default), 116,534,784 parameters, which the paper's successors call 117M.

A decoder of 12 layers, 768 wide, with the norms after the residuals and none after the embedding; learned positions,
tanh GELU, dropout 0.1 on the embeddings, on attention and on each branch. Everything starts at N(0, 0.02). In the
released code token and position rows are one table: its softmax has rows of positions too, and its embedding dropout
falls on the table. Here the softmax is over tokens alone, and dropout falls on the sum that is read.

Text is BooksCorpus, 7,000 books, a file each in data/books, of which the release no longer is to be had; any books
serve. The tokenizer is GPT's own, 40,478 lower-cased pieces: put its tokenizer.json at tokenizers/gpt.json, for which
docs/data.md has the command. It has no token between documents, so that texts are joined as they are.

Batch, rate, warm-up, decay and the cosine over 100 epochs are the paper's; of clipping it says nothing for pretraining,
and 1.0 is what its fine-tuning has.

Cost: 100 epochs of about 1 billion tokens: 7e19 FLOPs, a month on the paper's 8 GPUs of 2018.

Expect a perplexity of 18.4 a token on BooksCorpus.
"""

from configs import common

VARIANTS = ("base",)


def get_config(variant=""):
    """The recipe; no variant means base."""
    variant = common.check_variant("gpt", variant or "base", VARIANTS)
    config = common.base()
    config.name = f"gpt:{variant}"
    config.model.update(
        vocab_size=40_478,
        context=512,
        placement="post",
        dropout_embedding=0.1,
        dropout_attention=0.1,
        dropout_residual=0.1,
        position_init_std=0.02,
        scale_residual_init=False,
    )
    config.tokenizer.update(kind="huggingface", path="tokenizers/gpt.json", vocab_size=40_478)
    config.data.update(train="text:data/books/*.txt", layout="concat", length=512)
    config.train.update(steps=3_050_000, batch_size=64)  # 100 epochs
    config.optimizer.update(name="adamw", b1=0.9, b2=0.999, epsilon=1e-8, weight_decay=0.01, clip=1.0)
    config.schedule.update(kind="cosine", peak=2.5e-4, warmup=2000, end=0.0)
    return config
