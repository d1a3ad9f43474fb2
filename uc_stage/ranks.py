"""Which rank of a job this process is, and which node this one is, as launchers tell in the environment."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from uc_stage.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

# torchrun's name first (https://docs.pytorch.org/docs/stable/elastic/run.html), which Databricks' launcher shares; then
# Slurm's (https://slurm.schedmd.com/srun.html), which stays set where torchrun is started through srun.
_RANK = ("RANK", "SLURM_PROCID")
# Those of a job step before those of the whole job: `SLURM_NODEID` counts within the step.
_SLURM_NODES = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_KNOWN = (
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "NODE_RANK",
    "NNODES",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "SLURM_NODEID",
    *_SLURM_NODES,
)
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_SHARD = re.compile(rf"({_NUMBER.pattern})/({_NUMBER.pattern})", re.ASCII)


def read_rank(environment: Mapping[str, str] | None = None) -> int | None:
    """The rank, counted from 0; None where no launcher tells one: `WORLD_SIZE` may be there without `RANK`."""
    found = os.environ if environment is None else environment
    told = (found.get(name, "").strip() for name in _RANK)
    return next((int(text) for text in told if text.isascii() and text.isdigit()), None)


def read_world_size(environment: Mapping[str, str]) -> int | None:
    """How many ranks the launcher tells of; None where it tells nothing, or of none."""
    told = environment.get("WORLD_SIZE", "").strip()
    return int(told) or None if _NUMBER.fullmatch(told) else None


def reader_of(
    rank: int | None,
    world_size: int | None,
    group: tuple[int, int] | None = None,
    shard: tuple[int, int] | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, int]:
    """Which of how many ranks reads a dataset: as given, else as the process group or the launcher has it.

    Args:
        rank: as given.
        world_size: as given.
        group: the rank and the world size of the process group, where there is one.
        shard: the node and the number of nodes, where the dataset is one node's shard: its ranks alone share it.
        environment: the launcher's variables; None for those of this process.

    Raises:
        InvalidRequest: no such rank, or one of the two without the other; the launcher tells one alone; or a node's
            shard is to be shared out over the ranks of all nodes.
    """
    found = os.environ if environment is None else environment
    told = {name: int(found[name]) for name in _KNOWN if _NUMBER.fullmatch(found.get(name, "").strip())}
    job = group or _pair(told, "RANK", "WORLD_SIZE")
    if rank is not None or world_size is not None:
        if rank is None or world_size is None:
            raise InvalidRequest("`rank` and `world_size` go together", hint="give both, or leave both to the launcher")
        if not 0 <= rank < world_size:
            raise InvalidRequest(f"there is no rank {rank} of {world_size}", hint="ranks are counted from 0")
        if shard and job and world_size == job[1] > told.get("LOCAL_WORLD_SIZE", job[1] // shard[1]):
            raise InvalidRequest(
                f"these are the rows of node {shard[0]} of {shard[1]}, and {world_size} ranks are those of all nodes",
                hint="leave `rank` and `world_size` out, or give those within the node",
            )
        return rank, world_size
    if job is None:
        if told.get("WORLD_SIZE", 1) > 1:
            raise InvalidRequest(
                f"`WORLD_SIZE={told['WORLD_SIZE']}` is set, and `RANK` is not", hint="give `rank` and `world_size`"
            )
        return 0, 1
    if shard is None or job[1] == 1:
        return job
    if (local := _pair(told, "LOCAL_RANK", "LOCAL_WORLD_SIZE")) is not None:
        return local
    if job[1] % shard[1] or job[0] // (job[1] // shard[1]) != shard[0]:
        raise InvalidRequest(
            f"these are the rows of node {shard[0]} of {shard[1]}, and which rank of that node this one is "
            f"`RANK={job[0]}` and `WORLD_SIZE={job[1]}` do not tell",
            hint="give `rank` and `world_size` within the node, or set `LOCAL_RANK` and `LOCAL_WORLD_SIZE`",
        )
    return job[0] % (job[1] // shard[1]), job[1] // shard[1]


def ranks_here(world_size: int, environment: Mapping[str, str] | None = None, most: int | None = None) -> int:
    """How many of so many ranks are on this node, as the launcher tells; all, or `most` of them, where it does not."""
    text = (os.environ if environment is None else environment).get("LOCAL_WORLD_SIZE", "").strip()
    local = max(1, int(text)) if _NUMBER.fullmatch(text) else most
    return world_size if local is None else min(world_size, local)


def _pair(told: Mapping[str, int], rank: str, size: str) -> tuple[int, int] | None:
    return (told[rank], told[size]) if rank in told and size in told and told[rank] < told[size] else None


def parse_shard(
    given: str | tuple[int, int] | None, flag: str, environment: Mapping[str, str] | None = None
) -> tuple[int, int] | None:
    """Reads `RANK/WORLD` of a node, or `auto` for what the launcher tells: its rank from 0, and how many nodes.

    Raises:
        InvalidRequest: it is neither, or out of range, or the launcher tells too little or contradicts itself.
    """
    if given is None:
        return None
    if given == "auto":
        return _read_node(flag, os.environ if environment is None else environment)
    if isinstance(given, str):
        if (parts := _SHARD.fullmatch(given.strip())) is None:
            raise InvalidRequest(
                f"`{flag} {given}` is neither RANK/WORLD nor auto",
                hint=f"such as {flag} 0/4 on the first of four nodes",
            )
        given = int(parts[1]), int(parts[2])
    rank, count = given
    if not 0 <= rank < count:
        raise InvalidRequest(
            f"`{flag} {rank}/{count}` names no node: the ranks of {count} nodes count from 0",
            hint=f"such as {flag} 0/4 on the first of four nodes",
        )
    return rank, count


def _read_node(flag: str, environment: Mapping[str, str]) -> tuple[int, int]:
    told = _numbers(environment, flag)
    ranks, counts = _of_torchrun(told) if "GROUP_RANK" in told else _of_others(told, flag)
    rank = _agreed(ranks, "the node's rank is", flag)
    count = _agreed(counts, "the number of nodes is", flag)
    if rank is None and count == 1:
        rank = 0
    if rank is None or count is None:
        raise _missing(told, rank, count, flag)
    if rank >= count:
        words = f"`{next(iter(ranks))}` tells node {rank}, and `{next(iter(counts))}` tells {count} nodes"
        raise _contradiction(f"{words}, which are counted from 0", flag)
    return rank, count


def _of_torchrun(told: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """What torchrun's own variables tell: it numbers the nodes anew, whatever started it tells."""
    counts = {"GROUP_WORLD_SIZE": told["GROUP_WORLD_SIZE"]} if "GROUP_WORLD_SIZE" in told else {}
    return {"GROUP_RANK": told["GROUP_RANK"]}, counts or _nodes(told)


def _of_others(told: Mapping[str, int], flag: str) -> tuple[dict[str, int], dict[str, int]]:
    """What all other variables tell, which must agree: one that a batch script exported is the same on every node."""
    ranks = {name: told[name] for name in ("NODE_RANK", "SLURM_NODEID") if name in told}
    counts = {"NNODES": told["NNODES"]} if "NNODES" in told else {}
    if slurm := next((name for name in _SLURM_NODES if name in told), None):
        counts[slurm] = told[slurm]
    rank, local, size = (told.get(name) for name in ("RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    if local and size and size % local:
        raise _contradiction(f"`WORLD_SIZE={size}` is no multiple of `LOCAL_WORLD_SIZE={local}`", flag)
    if local and rank is not None:
        if told.get("LOCAL_RANK", rank % local) != rank % local:
            words = f"`RANK={rank}` with `LOCAL_WORLD_SIZE={local}` and `LOCAL_RANK={told['LOCAL_RANK']}`"
            raise _contradiction(f"{words}: ranks are not counted node by node", flag)
        ranks["RANK / LOCAL_WORLD_SIZE"] = rank // local
    return ranks, {**counts, **_nodes(told)}


def _nodes(told: Mapping[str, int]) -> dict[str, int]:
    """How many nodes the ranks make; one rank alone is on one."""
    local, size = told.get("LOCAL_WORLD_SIZE"), told.get("WORLD_SIZE")
    if local and size:
        return {"WORLD_SIZE / LOCAL_WORLD_SIZE": size // local}
    return {"WORLD_SIZE": 1} if size == 1 else {}


def _numbers(environment: Mapping[str, str], flag: str) -> dict[str, int]:
    found = {}
    for name in _KNOWN:
        if text := environment.get(name, "").strip():
            if not _NUMBER.fullmatch(text):
                raise InvalidRequest(f"`{name}={text}` is no number", hint=f"unset it, or give `{flag} RANK/WORLD`")
            found[name] = int(text)
    return found


def _agreed(told: Mapping[str, int], what: str, flag: str) -> int | None:
    if len(set(told.values())) > 1:
        words = ", and ".join(f"{value} by `{name}`" for name, value in told.items())
        raise _contradiction(f"{what} {words}", flag)
    return next(iter(told.values()), None)


def _contradiction(words: str, flag: str) -> InvalidRequest:
    return InvalidRequest(
        f"the launcher's variables contradict each other: {words}",
        hint=f"unset the wrong one, or give `{flag} RANK/WORLD` with the node's rank and the number of nodes",
    )


def _missing(told: Mapping[str, int], rank: int | None, count: int | None, flag: str) -> InvalidRequest:
    lacking = [
        words for words, value in (("which node this is", rank), ("how many nodes there are", count)) if value is None
    ]
    seen = ", ".join(f"`{name}={value}`" for name, value in told.items()) or "no launcher's variables"
    named = ["`NODE_RANK`"] if rank is None else []
    if count is None:
        named.append("`LOCAL_WORLD_SIZE`, the ranks of a node" if "WORLD_SIZE" in told else "`NNODES`")
    return InvalidRequest(
        f"`{flag} auto` cannot tell {' and '.join(lacking)}: the environment has {seen}",
        hint=f"set {' and '.join(named)}; or give `{flag} RANK/WORLD` with the node's rank and the number of nodes",
    )
