"""How many reads of a source are worth while at once: more while that brings more, fewer when it hurts."""

from __future__ import annotations

_FIRST = 64
# Where each read waits for a round trip, most of them cost nothing but patience.
_FAR = 96
# A round is so long at least: what a shorter one tells is chance.
_ROUND_SECONDS = 0.1
# What a raise has to bring to be kept, and the growth of a read's time without one that is taken for a queue's.
_GAIN, _SLOWER = 1.05, 2.0
# After a fall, or a raise that brought nothing, the next try is so far off.
_REST_SECONDS = 3.0
# A read that brings few bytes costs its round trip, too: as much as so many bytes.
_TRIP_BYTES = 256 * 1024


class Pace:
    """The number of reads that may be under way, `limit`, from 1 to `most`. Not locked: its user is.

    It doubles from round to round while each doubling pays. Then it tries one step up now and then, keeps what paid
    and takes back what did not, gives up a quarter where reads take much longer than they did, and halves on failures.
    """

    def __init__(self, most: int, now: float, first: int = _FIRST) -> None:
        self._most = most
        self.limit = min(most, first)
        self._before, self._rate = self.limit, 0.0
        self._climbing = True
        self._seconds = 0.0
        self._rest_until = 0.0
        self._begin(now)

    def done(self, length: int, seconds: float, now: float) -> None:
        """Counts a read that took so long, and judges the round where this was its last."""
        self._work += length + _TRIP_BYTES
        self._spent += seconds * _TRIP_BYTES / (length + _TRIP_BYTES)
        self._count += 1
        if self._count >= self.limit and now - self._since >= _ROUND_SECONDS:
            self._judge(now)

    def leap(self, now: float) -> None:
        """Begins anew with as many reads as a source that is far away takes well."""
        self.limit = self._before = min(self._most, _FAR)
        self._rate = self._seconds = 0.0
        self._begin(now)

    def failed(self, now: float) -> None:
        """Halves on a failure (EIO, a refusal for too many requests, a stall); those of one moment count once."""
        if now >= self._rest_until or self._climbing:
            self.limit = max(1, self.limit // 2)
            self._settle(now)

    def _judge(self, now: float) -> None:
        rate, seconds = self._work / (now - self._since), self._spent / self._count
        raised, paid = self.limit > self._before, rate > self._rate * _GAIN
        if raised and not paid:
            self.limit = self._before
            self._settle(now)
        elif self._climbing or (raised and paid):
            self._raise(rate, 2 * self.limit if self._climbing else self.limit + max(1, self.limit // 4))
        elif now >= self._rest_until:
            # Not before: the reads of a round may be older than its limit.
            if seconds > _SLOWER * self._seconds > 0 and not paid:
                self.limit = max(1, self.limit - self.limit // 4)
                self._settle(now)
            else:
                self._raise(rate, self.limit + max(1, self.limit // 4))
        self._seconds = min(seconds, self._seconds or seconds)
        self._rate = self._rate or rate
        self._begin(now)

    def _raise(self, rate: float, limit: int) -> None:
        self._before, self._rate = self.limit, rate
        self.limit = min(self._most, limit)

    def _settle(self, now: float) -> None:
        self._climbing = False
        self._before, self._rate = self.limit, 0.0
        self._rest_until = now + _REST_SECONDS
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._since, self._work, self._spent, self._count = now, 0, 0.0, 0
