"""TPUs that are not there."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    """What is looked at of a TPU when it is put on a mesh, or a mesh looked at."""

    id: int
    coords: tuple[int, ...]
    core_on_chip: int = 0
    device_kind: str = "TPU v5"
    platform: str = "tpu"
    process_index: int = 0
    slice_index: int = 0
