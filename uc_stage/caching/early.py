"""A copy that begins before its source is listed to the end: the first one of a plain folder."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from uc_stage.caching.making import Made, Shared, publish, refuse_foreign, sweep
from uc_stage.caching.places import place_of, variant_of
from uc_stage.caching.room import make_room, needed, take_room
from uc_stage.caching.survey import record_at, survey
from uc_stage.errors import InvalidRequest, NoSpace, NotFound, Unsupported, VerificationFailed
from uc_stage.manifest import CopyRecord
from uc_stage.publish import CopyPublication, now
from uc_stage.storage import LocalFolder, space_at
from uc_stage.transfer import DEFAULT_JOBS, copy_files

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from uc_stage.caching.places import Place
    from uc_stage.forms import Outputs
    from uc_stage.locks import Lock
    from uc_stage.model import CachePlan, CacheRequest, CopyFile
    from uc_stage.progress import Progress
    from uc_stage.sources import PlainFolder

# Room is asked for ahead of what is listed in steps, of this many bytes at first, and of as many as there are then.
_STEP_BYTES = 256 * 1024**2


def plan_early(request: CacheRequest, plain: PlainFolder) -> CachePlan | None:
    """The plan of a copy whose generation and files are not known yet; None where the listing has to come first.

    It has to where not all of the folder is copied as it is, or a copy of it is here; a URL's comes in one piece. With
    the state `partial` another process may be at it, or has left what is to be hashed again.
    """
    if request.check or request.force or variant_of(request) or not isinstance(plain.folder, LocalFolder):
        return None
    if record_at(place_of(request, plain.folder.url, "", None).path, request) is not None:
        # A DEST holds a copy, of this generation or of another one.
        return None
    found = survey(request, plain.folder.url, "", None, (), None)
    return found if found.state in ("absent", "partial") else None


class EarlyCopy:
    """One run's copy of a plain folder, which `make` lists and copies at once, holding the lock of its place.

    `own` is called with the place once that is known, and takes the lock of the copy's path.
    """

    def __init__(
        self,
        planned: CachePlan,
        plain: PlainFolder,
        place: Place,
        lock: Lock,
        own: Callable[[Place], None],
        progress: Progress,
    ) -> None:
        self._planned, self._request, self._plain, self._place = planned, planned.request, plain, place
        self._lock, self._take_own, self._progress = lock, own, progress
        self._shared = Shared(progress, lock)
        self._publication = CopyPublication(self._place.path, self._place.partial)
        self._refused = False
        self._evicted: tuple[str, ...] = ()
        self._outputs: Outputs = {}
        # The bytes that there is room for, and those of them that no listed file needs yet.
        self._asked = self._left = 0
        self._space = space_at(self._place.partial)

    def make(self) -> tuple[CachePlan, Place, Made]:
        """Makes the copy.

        Raises:
            As `caching.run`. What a source that no copy can be made of, or that there is no room for, left is removed.
        """
        request = self._request
        blank = CopyRecord(self._plain.folder.url, "", None, now(), (), variant_of(request))
        self._publication.open(blank)
        try:
            copied = copy_files(
                self._plain.folder,
                self._listed(),
                self._publication,
                request.jobs or DEFAULT_JOBS,
                self._shared,
                retries=request.retries,
                timeout=request.read_timeout,
            )
        finally:
            if self._refused:
                self._publication.drop()
        files = tuple(sorted(copied, key=lambda file: file.path))
        record = replace(blank, generation=self._planned.generation, created_at=now(), files=files)
        publish(self._publication, self._place, request, record, None, self._outputs, None, instead=False)
        made = Made(self._planned.bytes, 0, self._evicted, len(files), self._planned.bytes)
        return self._planned, self._place, made

    def _listed(self) -> Generator[CopyFile]:
        """The files as they are listed, as long as there is room; what is left once the room for all is made."""
        try:
            files: list[CopyFile] = []
            held: list[CopyFile] = []
            for file in self._plain.files():
                files.append(file)
                if not held and self._has_room(file):
                    yield file
                else:
                    held.append(file)
            self._settle(files)
        except (InvalidRequest, NoSpace, NotFound, Unsupported, VerificationFailed):
            self._refused = True
            raise
        yield from held

    def _has_room(self, file: CopyFile) -> bool:
        """Whether a file fits, without any other copy having to go."""
        size = -(-file.bytes // self._space.block) * self._space.block
        if self._left < size:
            step = max(size, _STEP_BYTES, self._asked)
            for more in (step, size):
                total = self._asked + more
                need = needed(self._request, total, [], self._space) + total
                taken = self._publication.taken
                if take_room(self._request, self._place, total, need, self._lock, self._shared.done, taken):
                    if not self._asked:
                        # Of how much is known at the end of the listing.
                        self._shared.phase("copy")
                    self._asked, self._left = total, self._left + more
                    break
            else:
                return False
        self._left -= size
        return True

    def _settle(self, files: list[CopyFile]) -> None:
        """Takes the listing, which is whole, for the generation that is copied, and makes the room for all of it."""
        request, source = self._request, self._plain.listed(files)
        self._place = place_of(request, source.url, source.generation, None)
        self._take_own(self._place)
        self._publication.path = self._place.path
        size = sum(file.bytes for file in source.files)
        need = needed(request, size, (file.bytes for file in source.files), self._space)
        self._planned = replace(
            self._planned,
            generation=source.generation,
            path=self._place.path,
            files=source.files,
            bytes=size,
            bytes_to_copy=size,
            bytes_needed=need,
            file_count=len(source.files),
        )
        self._outputs = {file.path: (file,) for file in source.files}
        refuse_foreign(self._place.path, record_at(self._place.path, request), None, self._outputs)
        sweep(request, self._place, self._planned)
        self._evicted = make_room(
            request,
            self._place,
            size,
            need,
            self._lock,
            self._progress,
            self._shared.done,
            taken=self._publication.taken,
        )
        self._shared.know(size)
