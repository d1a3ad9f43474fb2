from __future__ import annotations

import pytest

from uc_stage.ranks import read_rank


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
