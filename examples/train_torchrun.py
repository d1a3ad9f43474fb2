"""Trains on all ranks from one copy a node, each rank on its share of the rows.

torchrun --nproc-per-node 8 train_torchrun.py /Volumes/main/sales/train/orders
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import uc_stage
from uc_stage.loaders.torch import ParquetBatches, as_is


def main(source: str) -> None:
    """What each rank runs."""
    # Every rank calls it: one of the node copies, the others wait and get the same path. Before there is a process
    # group, so that a long copy runs into no timeout of a collective.
    path = uc_stage.cache(source, progress=Log())

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    # Which rows are this rank's, the process group tells; all ranks have the same number of batches.
    data = ParquetBatches(path, batch_size=64, columns=["id", "price", "label"], shuffle=True)
    loader = DataLoader(data, batch_size=None, collate_fn=as_is, num_workers=2)

    model = DistributedDataParallel(torch.nn.Linear(1, 1).to(device))
    losses, ids = [], []
    for batch in loader:
        price, label = batch["price"].float().to(device), batch["label"].float().to(device)
        loss = torch.nn.functional.mse_loss(model(price[:, None] / 100)[:, 0], label)
        model.zero_grad()
        loss.backward()
        for parameter in model.parameters():  # in place of an optimizer
            if parameter.grad is not None:
                parameter.data.sub_(parameter.grad, alpha=0.1)
        losses.append(loss.item())
        ids.append(batch["id"])
    print(f"rank {data.rank}: {len(losses)} steps from {path}, loss {losses[0]:.2f} to {losses[-1]:.2f}", flush=True)
    prove(torch.cat(ids).to(device), data.rows, data.rank)
    dist.destroy_process_group()


def prove(ids: torch.Tensor, rows: int, rank: int) -> None:
    """Ends the job unless the ranks saw each row of the export once: no id twice, and as many as there are rows."""
    last = ids.max()
    dist.all_reduce(last, dist.ReduceOp.MAX)
    seen = torch.bincount(ids, minlength=int(last) + 1)
    dist.all_reduce(seen)
    if int(seen.max()) != 1 or int(seen.sum()) != rows:
        raise SystemExit(f"{int(seen.sum())} rows were seen of {rows}, one of them {int(seen.max())} times")
    if rank == 0:
        print(f"{dist.get_world_size()} ranks saw each of {rows} rows once", flush=True)


class Log:
    """Who copies, and who waits for whom, in the log of each rank; without it, `uc_stage.cache` says nothing."""

    def phase(self, name: str, *, total: int | None = None, unit: str = "bytes") -> None:
        """Begins something."""
        self.note(name if total is None else f"{name}, {total} {unit}")

    def advance(self, amount: int) -> None:
        """Counts, for a bar."""

    def note(self, message: str) -> None:
        """Says whom this rank waits for, and how far that one is."""
        print(f"rank {os.environ['RANK']}: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
