"""Three attentions for a longer context: equal parameters, equal data, minutes each on two CPU cores.

    pretrain train --config=configs/long_context.py:transformer_xl --workdir=runs/transformer_xl

| variant         | reads in training                     | attention                            | parameters |
|-----------------|---------------------------------------|--------------------------------------|------------|
| dense (default) | 64 rows of 32 bytes                   | causal                               | 1,853,808  |
| transformer_xl  | 64 lanes, 32 bytes and a memory of 96 | relative, over memory and segment    | 1,853,705  |
| sparse          | 2 rows of 1,024 bytes                 | fixed: blocks of 64, 8 summary bytes | 1,853,784  |

Each update reads 2,048 bytes. Transformer-XL spends D^2 parameters per layer on distances, taken from its feed-forward.
Data: the Python standard library. docs/attention.md has results for a prefix of enwik8, with the commands.
"""

from configs import common

VARIANTS = ("dense", "transformer_xl", "sparse")


def get_config(variant=""):
    """Return the config of one attention; no variant means dense."""
    variant = common.check_variant("long_context", variant or "dense", VARIANTS)
    config = common.base()
    config.name = f"long_context:{variant}"
    config.tokenizer.update(kind="bytes", vocab_size=257)
    # Feed-forward sizes differ so that all three have 1.85 million parameters.
    network = {"vocab_size": 257, "layers": 4, "width": 192, "heads": 4, "dtype": "float32"}
    if variant == "transformer_xl":
        config.model = common.recurrent()
        config.model.update(**network, ff=690, memory=96, dropout=0.0, activation="gelu_tanh")
        config.data.update(layout="stream", length=32, shuffle=False)
        config.evaluate.model.update(memory=192, clamp=128, same_length=True)
        rows = 64
    elif variant == "sparse":
        config.model.update(**network, ff=774, context=1024, attention=("fixed_64_8",), positions="factorised")
        config.model.position_axes = (16, 64)
        config.data.length = 1024
        rows = 2
    else:
        config.model.update(**network, ff=780, context=32)
        config.data.length = 32
        rows = 64
    config.train.update(steps=1500, batch_size=rows)
    config.optimizer.update(name="muon", b1=0.95, b2=0.95, weight_decay=0.1)
    config.schedule.update(kind="linear", peak=3e-3, warmup=50, end=0.0)
    config.checkpoint.update(every=250)
    config.evaluate.update(every=250, batches=8, batch_size=rows)
    config.log.every = 50
    return config
