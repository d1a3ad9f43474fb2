"""Which rank of a job this process is, and on which of its nodes, as launchers tell in the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uc_stage.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

# torchrun's names first (https://docs.pytorch.org/docs/stable/elastic/run.html), which Databricks' launcher shares;
# then Slurm's (https://slurm.schedmd.com/srun.html), which stay set where torchrun is started through srun.
_RANK = ("RANK", "SLURM_PROCID")
_WORLD = ("WORLD_SIZE", "SLURM_NTASKS")
_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID")
_NODE = ("NODE_RANK", "GROUP_RANK", "SLURM_NODEID")
_NODES = ("NNODES", "GROUP_WORLD_SIZE", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those of its job, counted from 0; None for what no launcher tells."""

    rank: int | None = None
    world: int | None = None
    local_rank: int | None = None
    node: int | None = None
    nodes: int | None = None


def read_ranks(environment: Mapping[str, str] | None = None) -> Ranks:
    """Reads what a launcher set; `WORLD_SIZE` may be there without `RANK`.

    A node follows from the ranks where only `LOCAL_WORLD_SIZE` tells how many of them each node has.

    Raises:
        InvalidRequest: a variable that is no number of its kind.
    """
    found = os.environ if environment is None else environment
    rank, world = _first(found, _RANK), _first(found, _WORLD)
    node, nodes = _first(found, _NODE), _first(found, _NODES)
    each = _first(found, ("LOCAL_WORLD_SIZE",))
    if each:
        if node is None and rank is not None:
            node = rank // each
        if nodes is None and world is not None:
            nodes = -(-world // each)
    return Ranks(rank, world, _first(found, _LOCAL_RANK), node, nodes)


def node_shard(environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """This node's number and how many there are, for `--shard auto`; (0, 1) where no launcher tells of any.

    Raises:
        InvalidRequest: there are several nodes, or ranks, and nothing says which one this is; or it is none of them.
    """
    ranks = read_ranks(environment)
    nodes = ranks.nodes
    if nodes is None:
        if ranks.node is None and ranks.world in (None, 0, 1):
            return 0, 1
        told = f"node {ranks.node}" if ranks.node is not None else f"a world of {ranks.world} ranks"
        raise InvalidRequest(
            f"`--shard auto`: the environment tells of {told}, and not of how many nodes there are",
            hint="set `NNODES`, or write `--shard RANK/WORLD` with the number of this node and of all",
        )
    node = 0 if nodes == 1 and ranks.node is None else ranks.node
    if node is None:
        raise InvalidRequest(
            f"`--shard auto`: the environment tells of {nodes} nodes, and not of which one this is",
            hint="set `NODE_RANK`, or write `--shard RANK/WORLD` with the number of this node and of all",
        )
    if node >= nodes:
        raise InvalidRequest(
            f"`--shard auto`: the environment tells of node {node}, and of {nodes} nodes, which count from 0",
            hint="check `NODE_RANK` and `NNODES`, or write `--shard RANK/WORLD`",
        )
    return node, nodes


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        if text := environment.get(name, "").strip():
            # `NNODES` of torchrun can be a range, MIN:MAX, which says nothing of this run.
            if name == "NNODES" and ":" in text:
                continue
            if not (text.isascii() and text.isdigit()):
                raise InvalidRequest(f"`{name}={text}` is not a number from 0", hint=f"mend or unset `{name}`")
            return int(text)
    return None
