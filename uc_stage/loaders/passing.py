"""How a batch gets from a worker to the training process: in one message, where it is small."""

from __future__ import annotations

from typing import Any

# Nothing imports this module but `uc_stage.loaders.torch`, which needs torch for its own class.
import torch.utils.data  # noqa: TID253 - see above

# Beyond it, torch's own way through shared memory costs less than a copy through a pipe.
_MOST_BYTES = 1024**2
_ALIGNMENT = 16


def as_is(batch: Any) -> Any:
    """The `collate_fn` for `ParquetBatches`: the batch itself, which costs a worker one message.

    Without one, a `DataLoader` walks through every value of every list; and torch sends each tensor through a file
    descriptor of its own, which takes longer than to decode a small batch.
    """
    if torch.utils.data.get_worker_info() is None or not isinstance(batch, dict):
        return batch
    dense = {name: value for name, value in batch.items() if _is_dense(value)}
    if not dense or sum(value.nbytes for value in dense.values()) > _MOST_BYTES:
        return batch
    return _Message(batch, dense)


def _is_dense(value: Any) -> bool:
    return (
        type(value) is torch.Tensor
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not value.requires_grad
    )


class _Message:
    """A batch that is pickled as one run of bytes and unpickled as the dict that it was."""

    def __init__(self, batch: dict[Any, Any], dense: dict[Any, torch.Tensor]) -> None:
        self._batch, self._dense = batch, dense

    def __reduce__(self) -> tuple[Any, ...]:
        data = bytearray()
        layout = []
        for name, tensor in self._dense.items():
            data += bytes(-len(data) % _ALIGNMENT)
            layout.append((name, tensor.dtype, tuple(tensor.shape), len(data)))
            data += tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        rest = {name: None if name in self._dense else value for name, value in self._batch.items()}
        return _received, (rest, layout, bytes(data))


def _received(batch: dict[Any, Any], layout: list[tuple[Any, torch.dtype, tuple[int, ...], int]], data: bytes) -> Any:
    writable = bytearray(data)
    for name, dtype, shape, offset in layout:
        count = torch.Size(shape).numel()
        flat = (
            torch.frombuffer(writable, dtype=dtype, count=count, offset=offset)
            if count
            else torch.empty(0, dtype=dtype)
        )
        batch[name] = flat.reshape(shape)
    return batch
