"""Kernels that libraries keep, and what must be done to arrays and masks for them.

    splash    Pallas splash attention on TPUs
    cudnn     cuDNN's flash attention on NVIDIA GPUs
    triton    Pallas flash attention on NVIDIA GPUs, through Triton
    blocks    whole blocks of rows, and queries that see nothing

Each runs on any platform too, slowly and by the same arithmetic: `run` with `interpret=True`, or cuDNN's by XLA.
"""
