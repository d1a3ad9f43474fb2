from __future__ import annotations

import pytest

from uc_stage.errors import InvalidRequest
from uc_stage.ranks import parse_shard, read_rank


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, None),
        ({"RANK": "11", "WORLD_SIZE": "16", "LOCAL_RANK": "3"}, 11),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, 5),
        ({"RANK": "11", "SLURM_PROCID": "5"}, 11),
        ({"RANK": " ", "SLURM_PROCID": "5"}, 5),
        ({"WORLD_SIZE": "16"}, None),
        ({"RANK": "one"}, None),
        ({"RANK": "-1"}, None),
    ],
)
def test_the_rank_is_what_the_nearest_launcher_tells(environment: dict[str, str], rank: int | None) -> None:
    assert read_rank(environment) == rank


TORCHRUN = {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "RANK": "8", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}
SLURM = {"SLURM_NODEID": "2", "SLURM_NNODES": "4", "SLURM_JOB_NUM_NODES": "4"}


@pytest.mark.parametrize(
    ("environment", "node"),
    [
        (TORCHRUN, (1, 2)),
        # torchrun numbers the nodes anew, as it finds them.
        ({**TORCHRUN, **SLURM, "NODE_RANK": "0"}, (1, 2)),
        ({"GROUP_RANK": "1", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, (1, 2)),
        ({"RANK": "11", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "3"}, (2, 4)),
        ({"NODE_RANK": "1", "NNODES": "2"}, (1, 2)),
        ({"NODE_RANK": "1", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, (1, 2)),
        (SLURM, (2, 4)),
        ({"SLURM_NODEID": "1", "SLURM_JOB_NUM_NODES": "2"}, (1, 2)),
        ({**SLURM, "SLURM_NODEID": "1", "SLURM_STEP_NUM_NODES": "2"}, (1, 2)),
        ({**SLURM, "NODE_RANK": "2", "WORLD_SIZE": "32"}, (2, 4)),
        # One node is the first one.
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, (0, 1)),
        ({"WORLD_SIZE": "1"}, (0, 1)),
        ({"NNODES": "1", "NODE_RANK": " "}, (0, 1)),
    ],
)
def test_the_node_is_what_the_launcher_tells(environment: dict[str, str], node: tuple[int, int]) -> None:
    assert parse_shard("auto", "--shard", environment) == node


@pytest.mark.parametrize(
    ("environment", "message", "hint"),
    [
        ({}, "which node this is and how many nodes there are: the environment has no", "`NODE_RANK` and `NNODES`"),
        (
            {"WORLD_SIZE": "8"},
            "how many nodes there are: the environment has `WORLD_SIZE=8`",
            "`LOCAL_WORLD_SIZE`, the",
        ),
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, "cannot tell which node this is: the", "set `NODE_RANK`; or"),
        ({"NODE_RANK": "1", "WORLD_SIZE": "16"}, "cannot tell how many nodes there are: the", "set `LOCAL_WORLD_SIZE`"),
        ({"RANK": "8", "WORLD_SIZE": "16"}, "which node this is and how many", "RANK/WORLD"),
        ({"SLURM_NODEID": "1"}, "cannot tell how many nodes there are", "set `NNODES`"),
        ({"SLURM_NNODES": "2"}, "cannot tell which node this is", "set `NODE_RANK`"),
        ({**SLURM, "NODE_RANK": "0"}, "rank is 0 by `NODE_RANK`, and 2 by `SLURM_NODEID`", "unset the wrong one"),
        ({**SLURM, "NNODES": "2"}, "number of nodes is 2 by `NNODES`, and 4 by `SLURM_NNODES`", "unset"),
        (
            {"NODE_RANK": "1", "RANK": "3", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"},
            "1 by `NODE_RANK`, and 0 by `RANK / LOCAL_WORLD_SIZE`",
            "unset",
        ),
        ({"RANK": "1", "WORLD_SIZE": "9", "LOCAL_WORLD_SIZE": "8"}, "`WORLD_SIZE=9` is no multiple of", "RANK/WORLD"),
        (
            {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0"},
            "ranks are not counted node by node",
            "RANK/WORLD",
        ),
        ({"NODE_RANK": "2", "NNODES": "2"}, "`NODE_RANK` tells node 2, and `NNODES` tells 2 nodes", "RANK/WORLD"),
        ({"GROUP_RANK": "2", "GROUP_WORLD_SIZE": "2"}, "`GROUP_RANK` tells node 2, and", "RANK/WORLD"),
        ({"NODE_RANK": "one", "NNODES": "2"}, "`NODE_RANK=one` is no number", "unset it"),
        ({"NODE_RANK": "0", "NNODES": "1:4"}, "`NNODES=1:4` is no number", "RANK/WORLD"),
    ],
)
def test_what_a_launcher_leaves_out_or_contradicts_is_named(
    environment: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_shard("auto", "--shard", environment)
    assert message in caught.value.message
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    "given", ["", "1", "1/", "a/b", "-1/2", "1/2/3", "2/2", "0/0", "1" * 5000 + "/2", (-1, 2), (2, 2)]
)
def test_a_share_that_is_none_is_refused(given: str | tuple[int, int]) -> None:
    with pytest.raises(InvalidRequest, match="--shard"):
        parse_shard(given, "--shard", {})


def test_a_share_is_a_rank_and_a_number_of_nodes() -> None:
    assert parse_shard("3/4", "--shard", {}) == parse_shard((3, 4), "--shard", {}) == (3, 4)
    assert parse_shard(None, "--shard", TORCHRUN) is None
