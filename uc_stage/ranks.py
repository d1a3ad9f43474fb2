"""Which rank of a job this process is, as launchers tell in the environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# torchrun's name first (https://docs.pytorch.org/docs/stable/elastic/run.html), which Databricks' launcher shares; then
# Slurm's (https://slurm.schedmd.com/srun.html), which stays set where torchrun is started through srun.
_RANK = ("RANK", "SLURM_PROCID")


def read_rank(environment: Mapping[str, str] | None = None) -> int | None:
    """The rank, counted from 0; None where no launcher tells one: `WORLD_SIZE` may be there without `RANK`."""
    found = os.environ if environment is None else environment
    told = (found.get(name, "").strip() for name in _RANK)
    return next((int(text) for text in told if text.isascii() and text.isdigit()), None)
