from __future__ import annotations

import pytest

from uc_stage.errors import InvalidRequest
from uc_stage.ranks import Ranks, node_shard, read_ranks

TORCHRUN = {
    "RANK": "11", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
}  # fmt: skip
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NODEID": "2", "SLURM_NNODES": "4"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Ranks()),
        (TORCHRUN, Ranks(11, 16, 3, 1, 2)),
        (SLURM, Ranks(5, 8, 1, 2, 4)),
        ({**SLURM, **TORCHRUN}, Ranks(11, 16, 3, 1, 2)),
        ({"WORLD_SIZE": "16"}, Ranks(world=16)),
        ({"WORLD_SIZE": "16", "NODE_RANK": "1", "LOCAL_WORLD_SIZE": "8"}, Ranks(world=16, node=1, nodes=2)),
        ({"RANK": "9", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, Ranks(9, 16, None, 1, 2)),
        ({"NNODES": "1:4", "SLURM_NNODES": "3", "NODE_RANK": " "}, Ranks(nodes=3)),
    ],
)
def test_what_a_launcher_tells_is_read(environment: dict[str, str], expected: Ranks) -> None:
    assert read_ranks(environment) == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, (0, 1)), ({"WORLD_SIZE": "1"}, (0, 1)), (TORCHRUN, (1, 2)), (SLURM, (2, 4)), ({"NNODES": "1"}, (0, 1))],
)
def test_the_shard_of_a_node_follows_from_the_launcher(environment: dict[str, str], expected: tuple[int, int]) -> None:
    assert node_shard(environment) == expected


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"WORLD_SIZE": "16"}, "a world of 16 ranks, and not of how many nodes"),
        ({"NODE_RANK": "1"}, "node 1, and not of how many nodes"),
        ({"NNODES": "2"}, "2 nodes, and not of which one"),
        ({"NNODES": "2", "NODE_RANK": "2"}, "node 2, and of 2 nodes"),
        ({"RANK": "one"}, "`RANK=one` is not a number"),
        ({"NODE_RANK": "-1"}, "`NODE_RANK=-1` is not a number"),
    ],
)
def test_what_does_not_say_which_node_this_is_is_refused(environment: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        node_shard(environment)
    assert caught.value.hint
