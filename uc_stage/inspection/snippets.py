"""`--snippet`: Python that reads a target by torch, Hugging Face or Lightning, with its splits and its settings."""

from __future__ import annotations

import glob
import re
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uc_stage.errors import InvalidRequest, Unsupported, VerificationFailed
from uc_stage.inspection import wholeness
from uc_stage.ipc import is_stream_name
from uc_stage.model import Snippet
from uc_stage.parquet import is_parquet_name
from uc_stage.storage import open_folder

if TYPE_CHECKING:
    from collections.abc import Collection

    from uc_stage.model import Framework, InspectReport, LoaderSettings

# What `datasets` cannot make tensors of, wherever in a column it stands; it gives the values themselves.
_NO_TENSORS = re.compile(r"\b(?:timestamp|date32|date64|time32|time64|duration|decimal\w*)\b")
# What it cannot load at all.
_NO_DATASET = re.compile(r"\bmap<|extension<arrow\.uuid>")
_SHARD = re.compile(r"(?:^| )shard=")
_EPOCHS = 1
_ORDER = ("train", "validation", "test")
_WIDTH = 100
# What a loader would fail on, or read wrongly.
_IN_THE_WAY = wholeness.BROKEN | {"schema_differs", "table"}


def snippet(report: InspectReport, framework: Framework, files: Collection[str] = ()) -> Snippet:
    """The code for a target that was looked at; `files` tell how the ends of their names are spelled.

    Raises:
        InvalidRequest: a table, or what has no Parquet or Arrow rows. Unsupported: a column that `datasets` refuses.
        VerificationFailed: it is not whole, or its files differ, so that no code would read it.
    """
    if report.kind == "table":
        raise InvalidRequest(
            f"`{report.target}` is a Delta table, which no loader reads rightly",
            hint=f"export it first: uc-stage export {report.target} DEST",
        )
    if not report.loader:
        hint = "WebDataset reads its shards" if report.packed else "an export, a copy, or a folder of Parquet has"
        raise InvalidRequest(f"`{report.target}` has no Parquet or Arrow rows to load", hint=hint)
    fatal = _IN_THE_WAY | ({"empty_row_group"} if framework == "hf" else set())
    if problem := next((problem for problem in report.problems if problem.code in fatal), None):
        raise VerificationFailed(
            f"`{report.target}` cannot be loaded as it is: {problem.path}: {problem.message}",
            hint=f"uc-stage inspect {report.target}",
        )
    settings = report.loader["hf" if framework == "hf" else "torch"]
    names = files or report.extensions
    ends = dict.fromkeys(name[name.rfind(".") :] for name in names if is_parquet_name(name))
    target = _Target(report, settings, tuple(sorted(ends)))
    code = {"torch": _torch, "lightning": _lightning, "hf": _hf}[framework](target)
    return Snippet(report.target, framework, code, settings)


@dataclass(frozen=True, slots=True)
class _Target:
    report: InspectReport
    settings: LoaderSettings
    ends: tuple[str, ...]

    @property
    def path(self) -> str:
        """The target's absolute path or its URL: the code may run elsewhere."""
        return open_folder(self.report.target).url

    @property
    def splits(self) -> list[str | None]:
        """The splits that have rows, the one for training first; None where there are no splits."""
        named = [name for name, rows in self.report.splits.items() if rows]
        return sorted(named, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)) or [None]

    @property
    def loader_options(self) -> str:
        """What a `DataLoader` is given besides its dataset."""
        settings = self.settings
        options = f"num_workers={settings.num_workers}"
        if settings.prefetch_factor is not None:
            options += f", prefetch_factor={settings.prefetch_factor}, persistent_workers=True"
        return options

    @property
    def nulls(self) -> str:
        """What is to become of NULLs that a tensor has no place for; empty where there are none."""
        names = []
        for leaf in self.report.columns:
            flat_float = leaf.path == leaf.column and leaf.physical in ("FLOAT", "DOUBLE")
            number = leaf.physical in ("INT32", "INT64", "INT96", "BOOLEAN", "FLOAT", "DOUBLE")
            if number and not flat_float and leaf.nulls != 0 and leaf.column not in names:
                names.append(leaf.column)
        if self.report.columns and not names:
            return ""
        shown = _in_comment(", ".join(names[:3])) + (" and others" if len(names) > 3 else "")  # noqa: PLR2004 - a line holds three
        where = f"in {shown}" if names else "where there is one"
        return f'    # NULL {where} makes a list of that batch; nulls={{"COLUMN": -1}} would keep the tensor.\n'

    @property
    def paths(self) -> dict[str | None, list[str]]:
        """For each split the patterns of its Parquet files, and of no others."""
        report = self.report
        root = glob.escape(self.path)
        if report.kind == "file":
            return {None: [root]}
        if report.generation and re.fullmatch(r"v\d+-[0-9a-f]{6}", report.generation):
            # The generation in the names keeps out what other runs left there.
            return {one: [f"{root}/{glob.escape(str(one))}-*-{report.generation}.parquet"] for one in self.splits}
        return {None: [f"{root}/**/*{end}" for end in self.ends]}


def _in_comment(text: str) -> str:
    """A text as a comment can hold it, whatever names are in it: none ends the line."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _python(text: str | None) -> str:
    """A text as Python writes it, in double quotes as a formatter would."""
    if text is None:
        return "None"
    written = repr(text)
    return f'"{written[1:-1]}"' if written[0] == "'" and '"' not in text and "\\'" not in written else written


def _listed(names: list[str]) -> str:
    """A list of texts as Python, over several lines where it is long."""
    lines = [""]
    for written in map(_python, names):
        if lines[-1] and len(lines[-1]) + len(written) > _WIDTH:
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{written}"
    if len(lines) == 1:
        return f"[{lines[0]}]"
    return "\n".join(["[", *(f"        {line}," for line in lines), "    ]"])


def _calls(target: _Target, body: str) -> str:
    """What reads each split once: the first one for training, the others in their order."""
    first, *others = target.splits
    lines = [f"    train = loader({_python(first)}, shuffle=True)", body.rstrip("\n")]
    for split in others:
        lines += [
            f"    for batch in loader({_python(split)}, shuffle=False):",
            f"        pass  # {_in_comment(str(split))}: a step without gradients",
        ]
    return "\n".join(lines)


def _head(target: _Target, library: str) -> str:
    reasons = [_in_comment(f"{name}: {target.settings.reasons[name]}") for name in ("num_workers", "batch_size")]
    lines = [
        line
        for reason in reasons
        for line in textwrap.wrap(reason, _WIDTH, initial_indent="# ", subsequent_indent="#   ")
    ]
    title = f'"""Batches of tensors for each rank, by {library}; made by `uc-stage inspect --snippet`."""'
    return "\n".join([title, "", *lines])


def _parquet_batches(target: _Target) -> str:
    nulls = target.nulls
    option = ', nulls="list"' if nulls else ""
    return f"""def loader(split, shuffle):
    # Which rows are this rank's, the process group tells, else RANK and WORLD_SIZE; all ranks have as many batches.
{nulls}    data = ParquetBatches(PATH, {target.settings.batch_size}, shuffle=shuffle, split=split{option})
    return DataLoader(data, batch_size=None, collate_fn=as_is, {target.loader_options})
"""


def _torch(target: _Target) -> str:
    body = f"""    for epoch in range({_EPOCHS}):
        train.dataset.set_epoch(epoch)
        for batch in train:
            pass  # a dict of tensors by column: the training step
"""
    return f"""{_head(target, "uc_stage.loaders.torch")}

from torch.utils.data import DataLoader

from uc_stage.loaders.torch import ParquetBatches, as_is

PATH = {_python(target.path)}


{_parquet_batches(target)}

if __name__ == "__main__":
{_calls(target, body)}
"""


def _lightning(target: _Target) -> str:
    names = {"train": "train", "validation": "val", "test": "test"}
    first, *others = target.splits
    methods = [f"    def train_dataloader(self):\n        return loader({_python(first)}, shuffle=True)\n"]
    methods += [
        f"    def {names[split]}_dataloader(self):\n        return loader({_python(split)}, shuffle=False)\n"
        for split in others
        if split in names
    ]
    return f'''{_head(target, "Lightning over uc_stage.loaders.torch")}

import lightning
import torch
from torch.utils.data import DataLoader

from uc_stage.loaders.torch import ParquetBatches, as_is

PATH = {_python(target.path)}


{_parquet_batches(target)}

class Data(lightning.LightningDataModule):
{chr(10).join(methods)}

class Epochs(lightning.Callback):
    """Another order in each epoch: Lightning tells samplers of the epoch, and no dataset."""

    def on_train_epoch_start(self, trainer, module):
        trainer.train_dataloader.dataset.set_epoch(trainer.current_epoch)


class Model(lightning.LightningModule):
    """In place of yours."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def training_step(self, batch, index):
        return self.weight**2  # batch is a dict of tensors by column

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    trainer = lightning.Trainer(max_epochs={_EPOCHS}, callbacks=[Epochs()], logger=False, enable_checkpointing=False)
    trainer.fit(Model(), datamodule=Data())
'''


def _hf(target: _Target) -> str:
    report = target.report
    refused = next((field for field in report.schema if _NO_DATASET.search(field.type)), None)
    if refused is not None and not _is_arrow(report):
        raise Unsupported(
            f"`datasets` loads no Parquet with a column such as `{refused.name}`: {refused.type}",
            hint=f"export the table with --exclude-columns {refused.name}, or use --snippet torch",
        )
    plain = [field.name for field in report.schema if not _NO_TENSORS.search(field.type)]
    columns = given = ""
    if len(plain) < len(report.schema):
        columns = f"    # `datasets` makes no tensors of times and decimals.\n    columns = {_listed(plain)}\n"
        given = ", columns=columns, output_all_columns=True"
    streaming = target.settings.loader.endswith("streaming")
    # A node's shard is shared out over that node's ranks alone.
    rank, size = ("LOCAL_RANK", "LOCAL_WORLD_SIZE") if _SHARD.search(report.variant) else ("RANK", "WORLD_SIZE")
    load = _load(target, streaming=streaming)
    body = f"""    for epoch in range({_EPOCHS}):
        {"train.dataset.set_epoch(epoch)" if streaming else "train.sampler.sampler.set_epoch(epoch)"}
        for batch in train:
            pass  # a dict of tensors by column: the training step
"""
    if streaming:
        imports = "from datasets.distributed import split_dataset_by_node\nfrom torch.utils.data import DataLoader"
        plain_only = ".select_columns(columns)" if given else ""
        make = f"""    # Ranks may have one batch more than others.
    data = split_dataset_by_node(data{plain_only}, rank=RANK, world_size=WORLD_SIZE)
    if shuffle:
        data = data.shuffle(seed=0, buffer_size={min(10_000, max(1, report.rows or 1))})
    data = data.with_format("torch").batch({target.settings.batch_size})
    return DataLoader(data, batch_size=None, {target.loader_options})
"""
    else:
        imports = "from torch.utils.data import BatchSampler, DataLoader, DistributedSampler"
        make = f"""    # All ranks have as many rows: the last few are given twice where they do not come out even.
    rows = DistributedSampler(data, num_replicas=WORLD_SIZE, rank=RANK, shuffle=shuffle)
    # A batch at once, rather than row by row: with `batch_size=None` its indices go to the dataset together.
    batches = BatchSampler(rows, {target.settings.batch_size}, drop_last=False)
    data = data.with_format("torch"{given})
    return DataLoader(data, batch_size=None, sampler=batches, {target.loader_options})
"""
    return f"""{_head(target, "Hugging Face datasets")}

import os

import datasets
{imports}

PATH = {_python(target.path)}
RANK, WORLD_SIZE = int(os.environ.get("{rank}", "0")), int(os.environ.get("{size}", "1"))


def loader(split, shuffle):
{load}{columns}{make}

if __name__ == "__main__":
{_calls(target, body)}
"""


def _load(target: _Target, *, streaming: bool) -> str:
    report = target.report
    if _is_arrow(report):
        return "    # It is Arrow already, and mapped as it is.\n    data = datasets.load_from_disk(PATH)[split]\n"
    listed = "".join(
        f"        {_python(split)}: [{', '.join(map(_python, paths))}],\n" for split, paths in target.paths.items()
    )
    option = ", streaming=True" if streaming else ""
    return f"""    files = {{
{listed}    }}
    data = datasets.load_dataset("parquet", data_files=files[split], split="train"{option})
"""


def _is_arrow(report: InspectReport) -> bool:
    return any(is_stream_name(end) for end in report.extensions) and report.kind == "copy"
