"""Start `python -m pretrain ...` on several processes or machines, with the standard library alone.

Call a launcher as `python -m launch.NAME [its options] -- COMMAND --flags`: everything after `--` is for
`python -m pretrain`. The processes of a run find each other by three environment variables:

    LONGHAUL_COORDINATOR  address:port of process 0, or "auto" if JAX finds the others by itself (TPU pods)
    LONGHAUL_PROCESSES    number of processes
    LONGHAUL_PROCESS      index of this process, from 0
"""
