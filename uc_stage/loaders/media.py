"""Images, audio and text in a folder or a packed copy, as a map-style PyTorch dataset with labels from folders."""

from __future__ import annotations

import io
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

# A dataset must be a class of a module, so that a worker which is spawned can unpickle it.
import torch.utils.data  # noqa: TID253 - nothing imports this module but who wants torch

from uc_stage.errors import InvalidRequest, NotFound, Unavailable, VerificationFailed
from uc_stage.extras import installed
from uc_stage.loaders import samples
from uc_stage.storage import open_folder
from uc_stage.targets import look

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from uc_stage.loaders.samples import Kind
    from uc_stage.storage import Folder
    from uc_stage.storage.folder import Ranges

# So many shards a process has open at once: others are opened again, which takes less than to decode an image.
_MOST_OPEN = 32
# What a dataset has of its process, and is not pickled.
_OWN = {"_folder", "_lock", "_opened", "_pid"}


class FileSamples(torch.utils.data.Dataset[Any]):
    """The files of a folder as samples: `(sample, label)` by index, or the sample alone where there are no labels.

    Made by `files`. It holds names and places, no data, in a few arrays: workers that are forked share them, and it
    can be pickled. A `DistributedSampler` shares it out over ranks.

    Attributes:
        kind: `image`, `audio`, `text` or `bytes`.
        classes: the folders that the files lie in, sorted; empty without labels.
        class_to_idx: the label of each class.
        targets: the label of each file, as a list.
    """

    def __init__(
        self,
        source: str,
        kind: Kind | None,
        within: str,
        transform: Callable[[Any], Any] | None,
        *,
        labels: bool | None,
        decode: bool,
    ) -> None:
        import numpy as np

        target = look(source)
        if target.kind == "table" or target.tables:
            raise InvalidRequest(f"`{source}` is a Delta table", hint=f"export it first: uc-stage export {source} DEST")
        self.transform = transform
        self._url = target.folder.url
        prefix = f"{within.strip('/')}/" if within.strip("/") else ""
        places = samples.packed(target)
        found = [path for path in (places or samples.plain(target)) if path.startswith(prefix)]
        self.kind: Kind = _kind_of(source, found, kind)
        self._decodes = decode and self.kind != "bytes"
        _require_decoder(self.kind, decodes=self._decodes)
        if self.kind != "bytes":
            found = [path for path in found if samples.extension(path) in samples.EXTENSIONS[self.kind]]
        if not found:
            what = "file" if self.kind == "bytes" else f"file of {self.kind}"
            raise NotFound(f"`{target.folder.locate(prefix)}` holds no {what}", hint=f"uc-stage inspect {source}")
        classes = {path: path[len(prefix) :].rpartition("/")[0].partition("/")[0] for path in found}
        if labels is None:
            labels = any(classes.values())
        if labels and (lost := next((path for path in found if not classes[path]), None)) is not None:
            raise InvalidRequest(
                f"`{target.folder.locate(lost)}` lies in no folder that would be its label",
                hint="move it into one, or give `labels=False`",
            )
        found.sort(key=lambda path: (classes[path], path.rpartition("/")))
        self.classes = sorted(set(classes.values())) if labels else []
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}
        # Lists of Python's own objects would be copied, page by page, into each forked worker that counts references.
        names = [os.fsencode(path) for path in found]
        self._names = np.frombuffer(b"".join(names), np.uint8)
        self._ends = np.cumsum([len(name) for name in names])
        self._labels = np.array([self.class_to_idx[classes[path]] for path in found] if labels else [], np.int64)
        self._shards = sorted({shard for shard, _, _ in places.values()}) if places else []
        number = {shard: index for index, shard in enumerate(self._shards)}
        self._places = np.array([(number[s], o, n) for s, o, n in map(places.__getitem__, found)]) if places else None
        self._forget()

    def __len__(self) -> int:
        """The files."""
        return len(self._ends)

    def __getitem__(self, index: int) -> Any:
        """One sample, decoded and transformed; with its label where there are labels.

        Raises:
            IndexError: there is none. VerificationFailed: a file that cannot be decoded, by its name.
            StageError: one that cannot be read.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        data = self._read(index)
        sample = self._decoded(data, index) if self._decodes else data
        if self.transform is not None:
            sample = self.transform(sample)
        return (sample, int(self._labels[index])) if self.classes else sample

    @property
    def targets(self) -> list[int]:
        """The label of each file, in order; none without labels."""
        return [int(label) for label in self._labels]

    def path(self, index: int) -> str:
        """The path of a file below the source, as it was before it was packed."""
        start = self._ends[index - 1] if index else 0
        return os.fsdecode(self._names[start : self._ends[index]].tobytes())

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: no open file."""
        return {name: value for name, value in self.__dict__.items() if name not in _OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes what was pickled."""
        self.__dict__.update(state)
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._folder: Folder = open_folder(self._url)
        # The one that was read last is at the end. Guarded, since another thread may close what one reads.
        self._opened: dict[str, Ranges] = {}
        self._lock = threading.Lock()
        weakref.finalize(self, _close, self._opened)

    def _read(self, index: int) -> bytes:
        if self._pid != os.getpid():
            # Connections, and the threads behind them, are the parent's.
            self._forget()
        if self._places is None:
            return self._folder.read(self.path(index))
        shard, offset, size = (int(value) for value in self._places[index])
        name = self._shards[shard]
        buffer = bytearray(size)
        with self._lock:
            whole = not size or self._open(name).read_into(memoryview(buffer), offset) == size
        if not whole:
            raise VerificationFailed(
                f"`{self._folder.locate(name)}` ends before `{self.path(index)}` does",
                hint="make the copy anew: uc-stage cache SOURCE --pack --verify",
            )
        return bytes(buffer)

    def _open(self, name: str) -> Ranges:
        if (opened := self._opened.pop(name, None)) is None:
            while len(self._opened) >= _MOST_OPEN:
                self._opened.pop(next(iter(self._opened))).close()
            opened = self._folder.ranges(name)
        self._opened[name] = opened
        return opened

    def _decoded(self, data: bytes, index: int) -> Any:
        try:
            if self.kind == "image":
                return _image(data)
            return _audio(data) if self.kind == "audio" else data.decode()
        except Exception as error:
            # Each format's decoder has errors of its own, from SyntaxError to struct.error.
            place = self._folder.locate(self.path(index))
            raise VerificationFailed(
                f"`{place}` cannot be decoded as {self.kind}: {str(error).splitlines()[0] if str(error) else error!r}",
                hint="repair or remove that file; `decode=False` gives the bytes of all files",
            ) from error


def files(
    source: str,
    kind: Kind | None = None,
    *,
    within: str = "",
    transform: Callable[[Any], Any] | None = None,
    labels: bool | None = None,
    decode: bool = True,
) -> FileSamples:
    """A map-style dataset over the images, the audio or the text in a folder, a copy of one, or a packed copy.

    An image is a `PIL.Image` in RGB, and one with more than 8 bits a channel an error; audio a float32 tensor of
    (channels, frames) with its rate in Hz, text a `str`.
    The label is the number of the first folder below `source` in sorted order, as torchvision's `ImageFolder` has it.
    Hidden files and marker files (`_SUCCESS`) are left out, and files of another kind.

    Args:
        source: a path or URL.
        kind: `image`, `audio`, `text`, or `bytes` for all files as they are; without it, the one that is there.
        within: the folder below `source` that counts as the whole, such as `train`; in a packed copy too.
        transform: called with each sample, in the worker; what it returns is the sample.
        labels: whether there are labels; without it, there are where files lie in folders.
        decode: False for the bytes of the files.

    Raises:
        NotFound: nothing there, or no such file. InvalidRequest: files of several kinds, or a file without a label.
        Unavailable: the library that decodes is not installed.
    """
    return FileSamples(source, kind, within, transform, labels=labels, decode=decode)


def _kind_of(source: str, paths: Iterable[str], kind: Kind | None) -> Kind:
    if kind is not None:
        if kind not in (*samples.EXTENSIONS, "bytes"):
            raise InvalidRequest(f"`kind={kind!r}` is no kind of file", hint="give image, audio, text or bytes")
        return kind
    extensions = {samples.extension(path) for path in paths}
    there: list[Any] = [name for name, known in samples.EXTENSIONS.items() if known & extensions]
    if len(there) > 1:
        raise InvalidRequest(f"`{source}` holds files of {' and '.join(there)}", hint=f"give `kind='{there[0]}'`")
    return there[0] if there else "bytes"


def _require_decoder(kind: Kind, *, decodes: bool) -> None:
    module, package = samples.DECODERS.get(kind, (None, None))
    if decodes and module and not installed(module):
        raise Unavailable(
            f"files of {kind} are decoded with `{package}`, which is not installed",
            hint=f"pip install {package}; or give `decode=False` for their bytes",
        )


def _close(opened: dict[str, Ranges]) -> None:
    while opened:
        opened.popitem()[1].close()


def _image(data: bytes) -> Any:
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        if image.mode.startswith(("I", "F")):
            raise ValueError(f"mode `{image.mode}` has more than 8 bits a channel, which RGB would cut off")
        return image.convert("RGB")


def _audio(data: bytes) -> tuple[torch.Tensor, int]:
    import soundfile

    frames, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    return torch.from_numpy(frames.T.copy()), int(rate)
