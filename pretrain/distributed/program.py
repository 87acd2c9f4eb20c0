"""What decides what a process computes, beside its command and its config: the code it runs, and JAX's own settings."""

import hashlib
import os
from importlib import metadata
from pathlib import Path

import jax

ROOT = Path(__file__).resolve().parents[2]
CODE = ("input_pipeline", "models", "pretrain")
LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
VARIABLES = ("LONGHAUL_PROCESSES",)  # JAX meets as many as process 0 says, and the others believe it
SETTINGS = ("jax_enable_x64", "jax_default_prng_impl", "jax_threefry_partitionable", "jax_default_matmul_precision")


def told() -> dict[str, object]:
    """What must be the same in all processes of a run, by name."""
    code = hashlib.blake2b(digest_size=8)
    for path in sorted(path for part in CODE for path in (ROOT / part).rglob("*")):
        name = path.relative_to(ROOT)
        hidden = any(part.startswith(".") for part in name.parts)  # as editors leave them
        if name.suffix == ".py" and path.is_file() and not hidden:
            code.update(f"{name}\0".encode() + path.read_bytes())
    found = {"the code of longhaul": code.hexdigest()}
    found |= {f"the version of {name}": metadata.version(name) for name in LIBRARIES}
    found |= {name: os.environ.get(name, "") for name in VARIABLES}
    return found | {name: getattr(jax.config, name) for name in SETTINGS}
