"""Attention and whole training steps compiled for TPUs that are not there: their memory and their operations.

    python -m benchmarks.tpu_compile [--topologies v5e:2x2,v5p:2x2x1] [--only NAME] [--quick] [--format=json]

Needs the extra `plan` (libtpu), no TPU. One attention has 1 row, 8 heads of 64, bfloat16, and is compiled forward and
backward for one chip; `auto` picks the path as it would there. A step is the recipe's at its full size, one row for
each chip of the topology.

Temporaries are bytes of one chip, of the compiled program. Operations are XLA's own count, which counts the body of a
loop once and a kernel not at all: where there is neither, they are set against the count of `pretrain.flops`, as
`causal` has it. Above 1 are what blocks compute beyond the pattern and what the backward pass computes again.
"""

import functools
import os
import sys
import time

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # there is no TPU to ask about itself

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.experimental import topologies

from benchmarks import report
from configs import sparse_transformer, transformer_xl
from input_pipeline.features import language_model
from models.attention import attend, chosen_path
from models.attention.relative import attend_relative
from models.masks import Mask
from models.patterns import parse_pattern
from pretrain.engine import make_engine
from pretrain.flops import TRAIN, flops_per_token, keys_per_query
from pretrain.recipe import make_recipe
from pretrain.step import train_step

HEADS, SIZE, LONG = 8, 64, 12_288
