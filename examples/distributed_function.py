"""A function for a launcher that pickles it, as `@distributed` of Databricks' serverless GPUs: it takes no data along.

python distributed_function.py /Volumes/main/sales/train/orders
"""

from __future__ import annotations

import sys
from typing import Any

from serverless_gpu import distributed


@distributed(gpus=8, gpu_type="H100")
def train(source: str) -> dict[str, Any]:
    """What each process runs; its arguments are names and numbers, and what it returns is small."""
    import glob
    import os

    import pyarrow.parquet as pq

    import uc_stage

    # Resolved here, on the node that reads it: one process of each node copies, and the others get the same path.
    path = uc_stage.cache(source)

    # WORLD_SIZE may be there without RANK: then nothing says which share would be this process's, and it reads all.
    rank, world_size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE")) if "RANK" in os.environ else (0, 1)
    # Whole files: `uc-stage export --world-size 8 --drop-remainder` gives each rank as many, of as many rows.
    rows = 0
    for file in sorted(glob.glob(f"{path}/*.parquet"))[rank::world_size]:
        for batch in pq.ParquetFile(file).iter_batches():
            rows += batch.num_rows  # train on the batch
    return {"rank": rank, "path": path, "rows": rows}


if __name__ == "__main__":
    for result in train.distributed(sys.argv[1]):
        print(result)
