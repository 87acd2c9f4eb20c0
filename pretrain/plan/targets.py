"""Topology and overrides that each recipe is meant for.

`python docs/plan_table.py` compiles each step and writes docs/plan.md. Parts of a batch are chosen so that a chip
processes about 2,000 to 8,000 tokens at a time.
"""

import hashlib
import json
from typing import NamedTuple

from configs.common import MODELS, base
from pretrain import config as configs
from pretrain.config import flat

SHAPING = ("data.layout", "data.length", "distill.", "mesh.", "model.", "objective.", "optimizer.", "train.")
CHOSEN = ("mesh.data", "mesh.fsdp", "mesh.tensor", "train.accumulate", "model.remat")


class Target(NamedTuple):
    """A topology, and the overrides with which a recipe runs on it."""

    topology: str
    data: int = 1
    fsdp: int = 1
    tensor: int = 1
    parts: int = 1  # of a batch
    remat: str = ""  # empty: the recipe's own

    @property
    def overrides(self) -> tuple[tuple[str, str], ...]:
        """Config overrides; sizes of 1 are left out."""
        values = zip(CHOSEN, (self.data, self.fsdp, self.tensor, self.parts, self.remat), strict=True)
        kept = ((key, str(value)) for key, value in values if value not in (1, "") or key == "mesh.data")
        return tuple(kept)

    def config(self, recipe: str):
        """The config of a recipe, such as t5:11b, on this target."""
        name, _, variant = recipe.partition(":")
        overrides = self.overrides if self.parts > 1 else (*self.overrides, ("train.accumulate", "1"))
        return configs.load(f"configs/{name}.py:{variant}", overrides)


def fingerprint(config) -> str:
    """Digest of the keys that shape a step; figures of another fingerprint are stale."""
    defaults = flat(base()) | flat({"model": MODELS[config.model.kind]()})
    # Figures older than a key are of its default.
    later = {key for key in configs.YOUNGER if key in defaults}
    shaping = {
        key: str(value)
        for key, value in flat(config).items()
        if key.startswith(SHAPING) and key != "model.summary" and not (key in later and value == defaults[key])
    }
    return hashlib.sha256(json.dumps(shaping, sort_keys=True).encode()).hexdigest()[:16]


SMALL, MEDIUM, LARGE = "v5e:2x2", "v5e:4x4", "v5e:8x8"
TARGETS: dict[str, tuple[Target, ...]] = {
    "albert:base": (Target(MEDIUM, data=16, parts=16),),
    "albert:large": (Target(MEDIUM, data=16, parts=64),),
    "albert:xlarge": (Target(MEDIUM, data=16, parts=64),),
    "albert:xxlarge": (Target(MEDIUM, data=16, parts=64),),
    "bart:base": (Target(MEDIUM, data=16, parts=125),),
    "bart:large": (Target(MEDIUM, data=16, parts=250),),
    "bert:multilingual_cased": (Target(SMALL, data=4),),
    "bert:tiny": (Target(SMALL, data=4),),
    "bert:mini": (Target(SMALL, data=4),),
    "bert:small": (Target(SMALL, data=4),),
    "bert:medium": (Target(SMALL, data=4),),
    "bert:base": (Target(SMALL, data=4),),
    "bert:large": (Target(SMALL, data=4, parts=2),),
    "ctrl:base": (Target(MEDIUM, fsdp=16, parts=4),),
    "distilbert:uncased": (Target(SMALL, data=4, parts=50),),
    "distilbert:multilingual": (Target(SMALL, data=4, parts=50),),
    "distilbert:roberta": (Target(SMALL, data=4, parts=50),),
    "distilbert:gpt2": (Target(SMALL, data=4, parts=100),),
    "electra:small": (Target(SMALL, data=4),),
    "electra:small_plus": (Target(SMALL, data=4),),
    "electra:base": (Target(SMALL, data=4, parts=8),),
    "electra:large": (Target(MEDIUM, data=16, parts=32),),
    "gpt:base": (Target(SMALL, data=4, parts=2),),
    "gpt2:small": (Target(SMALL, data=4, parts=32), Target("h100:8", data=8, parts=4)),
    "gpt2:medium": (Target(MEDIUM, data=16, parts=8, remat="full"),),
    "gpt2:large": (Target(MEDIUM, fsdp=16, parts=4, remat="full"),),
    "gpt2:xl": (Target(MEDIUM, fsdp=16, parts=8, remat="full"), Target("h100:8", fsdp=8, parts=8)),
    "gpt3:small": (Target(SMALL, data=4, parts=16),),
    "gpt3:medium": (Target(MEDIUM, data=16, parts=8),),
    "gpt3:large": (Target(MEDIUM, fsdp=16, parts=8),),
    "gpt3:xl": (Target(MEDIUM, fsdp=16, parts=4), Target("v6e:4x4", fsdp=16, parts=2)),
    "gpt3:2.7b": (Target("v5e:4x8", fsdp=32, parts=2),),
    "gpt3:6.7b": (Target(LARGE, fsdp=64, parts=2),),
    "gpt3:13b": (Target("v5p:4x4x4", fsdp=64),),
    "gpt3:175b": (Target("v5p:8x8x8", fsdp=512),),
    "hands_on:causal": (Target(SMALL, data=4, parts=8),),
    "hands_on:masked": (Target(SMALL, data=4, parts=8),),
    "long_context:dense": (Target(SMALL, data=4),),
    "long_context:transformer_xl": (Target(SMALL, data=4),),
    "long_context:sparse": (Target(SMALL, data=2, tensor=2),),
    "long_documents:bert_4k": (Target(MEDIUM, data=16),),
    "long_documents:bert_8k": (Target("v5e:2x4", data=8),),
    "long_documents:bert_16k": (Target(SMALL, data=4, remat="full"),),
    "long_documents:t5_4k": (Target(MEDIUM, data=16, parts=16),),
    "long_documents:t5_8k": (Target(MEDIUM, data=16, parts=8),),
    "long_documents:t5_16k": (Target(MEDIUM, data=16, parts=4, remat="full"),),
    "llama:llama2_7b": (Target("v5p:4x4x4", fsdp=64, parts=2),),
    "llama:llama2_70b": (Target("v5p:8x8x8", fsdp=512),),
    "llama:llama3_8b": (Target("v5p:4x4x4", fsdp=64, parts=4),),
    "llama:llama3.2_1b": (Target(MEDIUM, fsdp=16, parts=64),),
    "llama:mistral_7b": (Target("v5p:4x4x4", fsdp=64, parts=4),),
    "llama:qwen2_0.5b": (Target(MEDIUM, fsdp=16, parts=64),),
    "llama:qwen3_0.6b": (Target(MEDIUM, fsdp=16, parts=64),),
    "llama:gemma_2b": (Target("v5e:4x8", fsdp=32, parts=32),),
    "mbart:large": (Target(LARGE, data=16, fsdp=4, parts=64, remat="full"),),
    "quickstart:default": (Target(SMALL, data=4),),
    "roberta:base": (Target(MEDIUM, data=16, parts=125),),
    "roberta:large": (Target(MEDIUM, data=16, parts=125),),
    "roberta:base_2k": (Target(MEDIUM, data=16, parts=16),),
    "roberta:camembert_base": (Target(MEDIUM, data=16, parts=64),),
    "roberta:camembert_large": (Target(MEDIUM, data=16, parts=128),),
    "roberta:xlmr_base": (Target(MEDIUM, data=16, parts=32, remat="full"),),
    "roberta:xlmr_large": (Target(MEDIUM, fsdp=16, parts=32, remat="full"),),
    "sparse_transformer:enwik8": (Target(SMALL, data=4, parts=4),),
    "sparse_transformer:cifar10": (Target(SMALL, data=4, parts=2),),
    "sparse_transformer:imagenet64": (Target(MEDIUM, data=16, parts=8),),
    "t5:small": (Target(MEDIUM, data=16, parts=16),),
    "t5:base": (Target(MEDIUM, data=16, parts=32),),
    "t5:large": (Target(MEDIUM, fsdp=16, parts=8, remat="full"),),
    "t5:3b": (Target("v5e:4x8", fsdp=32, parts=8, remat="full"),),
    "t5:11b": (
        Target("v4:4x4x8", fsdp=128, parts=4, remat="full"),
        Target("v5p:4x4x4", fsdp=64, remat="full"),
        Target("h200:8", fsdp=8, parts=64, remat="full"),
    ),
    "t5:base_prefix": (Target(MEDIUM, data=16, parts=32),),
    "t5:small_v1_1": (Target(MEDIUM, data=16, parts=16),),
    "t5:base_v1_1": (Target(MEDIUM, data=16, parts=32),),
    "t5:large_v1_1": (Target(MEDIUM, fsdp=16, parts=8, remat="full"),),
    "t5:xl_v1_1": (Target("v5e:4x8", fsdp=32, parts=16, remat="full"),),
    "t5:xxl_v1_1": (Target("v4:4x4x8", fsdp=128, parts=4, remat="full"),),
    "transformer:base": (Target(SMALL, data=4),),
    "transformer:big": (Target(SMALL, data=4),),
    "transformer:multi30k": (Target(SMALL, data=4),),
    "transformer_xl:wt103": (Target(SMALL, data=4),),
    "transformer_xl:wt103_large": (Target(MEDIUM, data=16, parts=2),),
    "transformer_xl:enwik8": (Target(SMALL, data=2, tensor=2),),
    "transformer_xl:enwik8_18": (Target(SMALL, data=2, tensor=2, parts=11),),
    "transformer_xl:enwik8_large": (Target(MEDIUM, data=16, parts=2),),
    "transformer_xl:text8": (Target(SMALL, data=2, tensor=2),),
    "transformer_xl:text8_large": (Target(MEDIUM, data=16, parts=2),),
    "transformer_xl:lm1b": (Target(SMALL, fsdp=4),),
    "transformer_xl:lm1b_large": (Target(MEDIUM, fsdp=16),),
    "xlm:en_2048": (Target(MEDIUM, fsdp=16),),
    "xlm:xnli15_1024": (Target(SMALL, data=4),),
    "xlm:mlm_100_1280": (Target(SMALL, fsdp=4),),
    "xlm:enfr_1024": (Target(SMALL, data=4),),
    "xlnet:base": (Target(MEDIUM, data=16, parts=128),),
    "xlnet:large": (Target(LARGE, fsdp=64, parts=32, remat="full"),),
}
# Variants whose step is that of another, but for its data, its words' number or its loss's weights.
LIKE = {
    "albert:base_v2": "albert:base",
    "albert:large_v2": "albert:large",
    "albert:xlarge_v2": "albert:xlarge",
    "albert:xxlarge_v2": "albert:xxlarge",
    "bert:multilingual_uncased": "bert:multilingual_cased",
    "bert:base_cased": "bert:base",
    "bert:large_cased": "bert:large",
    "bert:large_whole_words": "bert:large",
    "distilbert:cased": "distilbert:uncased",
    "electra:small_masked_loss": "electra:small",
    "electra:small_replace_mlm": "electra:small",
    "electra:small_all_tokens": "electra:small",
    "transformer:base_en_fr": "transformer:base",
    "transformer:big_en_fr": "transformer:big",
    "transformer_xl:lm1b_release": "transformer_xl:lm1b",
    "transformer_xl:lm1b_large_release": "transformer_xl:lm1b_large",
    "xlm:ende_1024": "xlm:enfr_1024",
}
