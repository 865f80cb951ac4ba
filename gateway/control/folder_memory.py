"""What is remembered of one folder between scans, and when its files may be believed.

Files are believed when they are older than the settling time, or when two looks half a second apart saw the same. What
cannot be loaded now is told at once, except while the files are that fresh.
"""

import time
from dataclasses import dataclass

from gateway.control.absence import SECOND_LOOK, Proof
from gateway.control.files import FileMark, Signature
from gateway.control.verdicts import Incomplete, Refused
from gateway.control.walk import Found
from gateway.core.adapters import Adapter, Home, Rejected, RejectedState

PATIENCE = 3  # looks in a row that must fail before a ready adapter is touched


@dataclass(slots=True)
class FolderMemory:
    found: Found
    marks: Signature = ()
    marked_at: float = 0.0  # steady clock: when these marks were first seen
    moves: int = 0  # looks in a row that saw other marks than the one before
    judged: bool = False  # the marks were judged; while they stay, so does the verdict
    pending: bool = False  # right, but too fresh to be believed
    failures: int = 0  # looks in a row that ended in an error
    misses: int = 0
    missed_at: float = 0.0  # steady clock: the first of these misses
    homed_at: float = 0.0  # steady clock: when a snapshot was last tried
    adapter: Adapter | None = None
    rejected: Rejected | None = None

    def mark(self, marks: Signature, now: float) -> None:
        if marks == self.marks:
            self.moves = 0 if self.judged else self.moves
            return
        self.moves = self.moves + 1 if self.marks else 0
        self.marks, self.marked_at, self.judged = marks, now, False

    def is_settled(self, settle: float, now: float, wall: float) -> bool:
        if now - self.marked_at >= SECOND_LOOK or settle <= 0:
            return True
        youngest = max(mark.modified for mark in self.marks) / 1e9
        return wall - youngest > settle

    def same_but_relinked(self, marks: Signature) -> bool:
        """Whether nothing but the change time moved, as it does when a snapshot links the files."""
        return [_unlinked(mark) for mark in marks] == [_unlinked(mark) for mark in self.marks]

    def miss(self, proof: Proof, now: float) -> bool:
        """Note that the folder is missing; True when that is to be believed."""
        if self.misses == 0:
            self.missed_at = now
        self.misses += 1
        return self.adapter is None or (self.misses >= proof.looks and now - self.missed_at >= proof.seconds)

    def fail(self, refused: Refused, wall: float) -> None:
        """Note a look that ended in an error. A ready adapter is touched only after several in a row."""
        self.failures += 1
        self.judged = self.pending = False
        if self.adapter is None or self.failures >= PATIENCE:
            self.reject(refused, wall)
            self.drop_unless_stored()

    def reject(self, refused: Refused, wall: float) -> None:
        state = RejectedState.INCOMPLETE if isinstance(refused, Incomplete) else RejectedState.INVALID
        since = self.rejected.since if self.rejected and self.rejected.state is state else wall
        reason = refused.reason
        if state is RejectedState.INCOMPLETE:
            reason += time.strftime(" (since %Y-%m-%d %H:%M:%S UTC)", time.gmtime(since))
        self.rejected = Rejected(self.found.name, self.found.folder, state, reason, refused.code, since)
        self.pending = False

    def wait(self, wall: float) -> None:
        """Right so far, but fresh: told as incomplete only when the files keep changing or were rejected before."""
        self.pending = True
        if self.rejected is not None or self.moves >= 2:
            self.reject(Incomplete("the files are still changing", "changing"), wall)

    def drop_unless_stored(self) -> None:
        """An adapter that is loaded from its own path is out when the files there are not what they were."""
        if self.adapter is not None and self.adapter.home is Home.OWN_PATH:
            self.adapter = None

    def is_restless(self) -> bool:
        """Whether another look is due soon."""
        if self.misses or (0 < self.failures <= PATIENCE):
            return True
        return not self.judged and self.failures == 0


def _unlinked(mark: FileMark) -> FileMark:
    return mark._replace(changed=0)
